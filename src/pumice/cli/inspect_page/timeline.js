"use strict";
// A measured run: its steps as bars over time, the sums by op, and the steps that took longest.

function timelineSection() {
  const profile = data.profile;
  const rows = data.timeline.steps;
  const whole = Math.max(...rows.map((r) => r[1] + r[2]), 1e-9);
  const byStep = new Map(profile.steps.map((s) => [s.step, s]));
  const picture = h("div", { class: "card picture", id: "run" });
  let [from, to] = [0, whole];
  const host = Object.entries(profile.host_seconds);
  const env = Object.entries(profile.env)
    .map(([k, v]) => `${k} = ${v}`)
    .join(", ");
  section(
    "timeline",
    "Timeline",
    `${profile.measured[0].toUpperCase()}${profile.measured.slice(1)}${env ? ` (${env})` : ""}, on ${profile.device}, ` +
      `median of ${profile.repeats}. Clock: ${profile.clock} – ${profile.method}.`,
    h(
      "div",
      { class: "figures" },
      figure(seconds(profile.device_seconds), "one run on the device"),
      figure(seconds(profile.step_seconds), "sum of the steps"),
      figure(percent(profile.coverage), "steps over run"),
      figure(profile.clock, "clock"),
      ...host.map(([name, s]) => figure(seconds(s), `host: ${name}`)),
    ),
    h(
      "div",
      { class: "tools" },
      h("span", { class: "soft" }, "Turn the wheel over the bars to zoom, drag to move, double-click for the whole run."),
      legend(profile.ops.map((o) => o.op)),
    ),
    picture,
    h(
      "div",
      { class: "columns", style: "margin-top: 1rem" },
      h("div", { class: "card" }, h("h3", { style: "margin-top: 0" }, "By op"), opTable()),
      h("div", { class: "card" }, h("h3", { style: "margin-top: 0" }, "Longest steps"), longest()),
    ),
  );
  explain(picture, (text) => {
    if (text.startsWith("part")) return text.slice(5);
    const r = rows[Number(text)];
    const s = byStep.get(r[0]);
    const flops = s.gflop_s ? `, ${quantity(s.gflop_s * 1e9, "FLOP/s")}` : "";
    return [
      `${s.step >= 0 ? `step ${s.step}: ` : ""}${s.label}`,
      s.variant || "–",
      `${seconds(s.seconds)} (${percent(s.share)}), least ${seconds(s.least)}, most ${seconds(s.most)}`,
      `${bytes(s.read_bytes + s.written_bytes)}, ${quantity(s.gb_s * 1e9, "B/s")}${flops}`,
    ].join("\n");
  });

  function draw() {
    const width = Math.max(600, picture.clientWidth - 36);
    const x = (t) => (width * (t - from)) / (to - from);
    const seen = rows.map((r, k) => [r, k]).filter(([r]) => r[1] + r[2] >= from && r[1] <= to);
    const bars = seen.map(([r, k]) => {
      const s = byStep.get(r[0]);
      const w = Math.max(0.6, x(r[1] + r[2]) - x(r[1]));
      const label =
        w > 9 + 6.5 * s.label.length
          ? svg("text", { x: Math.max(2, x(r[1])) + 5, y: 61, style: "fill: var(--card); pointer-events: none" }, s.label)
          : null;
      return [
        svg("rect", {
          class: "bar",
          x: x(r[1]),
          y: 34,
          width: w,
          height: 44,
          fill: colour(s.op),
          "data-tip": k,
          onclick: s.step >= 0 ? () => show.step(s.step) : null,
        }),
        label,
      ];
    });
    const marks = Array.from({ length: 11 }, (_, k) => from + ((to - from) * k) / 10).map((t, k) => [
      svg("line", { class: "gridline", x1: x(t), x2: x(t), y1: 78, y2: 84 }),
      svg("text", { x: x(t), y: 97, "text-anchor": k === 0 ? "start" : k === 10 ? "end" : "middle" }, seconds(t)),
    ]);
    picture.replaceChildren(
      svg(
        "svg",
        { height: 104, viewBox: `0 0 ${width} 104`, style: "cursor: grab; touch-action: none" },
        parts(x, width),
        bars,
        marks,
      ),
    );
  }

  // The parts of the graph above their steps.
  function parts(x, width) {
    const when = new Map(rows.map((r) => [r[0], r]));
    return segmentRuns().map(([name, first, last]) => {
      const inside = Array.from({ length: last - first + 1 }, (_, k) => when.get(first + k)).filter(Boolean);
      if (!inside.length) return null;
      const [a, b] = [x(inside[0][1]), x(inside[inside.length - 1][1] + inside[inside.length - 1][2])];
      if (b < 0 || a > width) return null;
      const total = inside.reduce((sum, r) => sum + byStep.get(r[0]).seconds, 0);
      const text = name.length * 6.3 + 6 < b - a ? name : name.split(".").pop();
      const middle = (Math.max(a, 0) + Math.min(b, width)) / 2;
      return [
        svg("rect", {
          class: "frame",
          x: a,
          y: 8,
          width: Math.max(0.5, b - a - 1),
          height: 20,
          rx: 3,
          "data-tip": `part ${name}\nsteps ${first}–${last}, ${seconds(total)}`,
        }),
        text.length * 6.3 + 4 < b - a
          ? svg("text", { x: middle, y: 22, "text-anchor": "middle", style: "pointer-events: none" }, text)
          : null,
      ];
    });
  }

  function opTable() {
    return dataTable(profile.ops, [
      [
        "op",
        (o) => o.op,
        { cell: (o) => [h("i", { class: "meter", style: `width: .7em; background: ${colour(o.op)}` }), " ", o.op] },
      ],
      ["steps", (o) => o.steps, { number: true }],
      ["time", (o) => seconds(o.seconds), { number: true, sort: (o) => o.seconds }],
      ["share", (o) => percent(o.share), { number: true, sort: (o) => o.share }],
      [
        "",
        (o) => "",
        { cell: (o) => h("i", { class: "meter", style: `width: ${(9 * o.share).toFixed(2)}em; background: ${colour(o.op)}` }) },
      ],
      ["moved", (o) => bytes(o.bytes), { number: true, sort: (o) => o.bytes }],
      ["rate", (o) => (o.bytes && o.seconds ? quantity(o.gb_s * 1e9, "B/s") : "–"), { number: true, sort: (o) => o.gb_s }],
    ]);
  }

  function longest() {
    const top = [...profile.steps].sort((a, b) => b.seconds - a.seconds).slice(0, 12);
    return dataTable(top, [
      ["step", (s) => s.step, { number: true, cell: (s) => (s.step >= 0 ? stepLink(s.step) : "–") }],
      ["label", (s) => s.label],
      ["time", (s) => seconds(s.seconds), { number: true, sort: (s) => s.seconds }],
      ["share", (s) => percent(s.share), { number: true, sort: (s) => s.share }],
      ["rate", (s) => quantity(s.gb_s * 1e9, "B/s"), { number: true, sort: (s) => s.gb_s }],
    ]);
  }

  function move(a, b) {
    const span = Math.min(whole, Math.max(b - a, whole / 20000));
    from = Math.max(0, Math.min(a, whole - span));
    to = from + span;
    draw();
  }

  const timeAt = (event) => {
    const box = picture.firstChild.getBoundingClientRect();
    return from + ((to - from) * (event.clientX - box.left)) / box.width;
  };
  picture.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      const [at, factor] = [timeAt(event), Math.exp(event.deltaY / 400)];
      move(at - (at - from) * factor, at + (to - at) * factor);
    },
    { passive: false },
  );
  picture.addEventListener("pointerdown", (event) => {
    const [start, a, b] = [event.clientX, from, to];
    const scale = (to - from) / picture.firstChild.getBoundingClientRect().width;
    const drag = (e) => {
      if (Math.abs(e.clientX - start) > 3) move(a - (e.clientX - start) * scale, b - (e.clientX - start) * scale);
    };
    const stop = () => {
      removeEventListener("pointermove", drag);
      removeEventListener("pointerup", stop);
    };
    addEventListener("pointermove", drag);
    addEventListener("pointerup", stop);
  });
  picture.addEventListener("dblclick", () => move(0, whole));
  addEventListener("resize", draw);
  draw();
}
