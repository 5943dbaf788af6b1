"use strict";
// Memory: buffers that live all the time, and the arenas over the steps of a run.

const ABOUT_ARENAS =
  "across: steps; down: the place in each arena. Point at a value for its bytes and lifetime, click it for its node.";
const BUFFER_KINDS = { param: "product", state: "attention", arena: "scalar", constant: "row", input: "index" };

function memorySection() {
  const { buffers, values } = data.memory;
  const arenas = [...buffers.keys()].filter((k) => buffers[k][0] === "arena");
  const steps = data.steps.length;
  const plan = data.plan;
  const saved = plan.arena_unshared_bytes - (plan.memory.arena || 0);
  const pictures = h("div", { class: "card picture", id: "arenas" });
  const scale = h("input", { type: "checkbox", onchange: () => draw() });
  const made = section(
    "memory",
    "Memory",
    `${plural(buffers.length, "buffer")}, ${bytes(buffers.reduce((sum, b) => sum + b[1], 0))} at the largest sizes. ` +
      `Values between the steps share ${plural(arenas.length, "arena")}: ${bytes(plan.memory.arena || 0)} ` +
      `instead of ${bytes(plan.arena_unshared_bytes)}, ${bytes(saved)} saved.`,
    h("div", { class: "card" }, memoryBar(plan.memory)),
    h("h3", {}, "Arenas over time"),
    h("div", { class: "tools" }, h("label", {}, scale, "heights to scale"), h("span", { class: "soft" }, ABOUT_ARENAS)),
    pictures,
    h("div", { style: "margin-top: .6rem" }, legend(values.map((v) => (nodes[v[0]] ? nodes[v[0]].op : "add")))),
  );
  explain(made, (text) => {
    if (text.startsWith("step")) return stepTip(Number(text.slice(5)));
    const [id, buffer, offset, size, first, last] = values[Number(text)];
    const until = last >= steps ? "the end" : `step ${last} (${data.steps[last].label})`;
    const from = first < steps ? `step ${first} (${data.steps[first].label})` : "never";
    const place = `${valueType(id)}, ${bytes(size)}\n${buffers[buffer][2]} at ${offset}`;
    return `${valueName(id)}\n${place}\nwritten in ${from}\nneeded until ${until}`;
  });

  function stepTip(k) {
    const live = values.filter((v) => v[4] <= k && k <= v[5]);
    const sum = live.reduce((sum, v) => sum + v[3], 0);
    return `step ${k}: ${data.steps[k].label}\n${plural(live.length, "value")} alive, ${bytes(sum)}`;
  }

  function draw() {
    const width = Math.max(600, pictures.clientWidth - 36);
    const left = 74;
    const x = (k) => left + ((width - left - 4) * k) / (steps + 1);
    const kept = arenas.length
      ? [alive(width, left, x), ...arenas.map((a) => band(a, width, left, x)), ruler(width, left, x)]
      : [h("p", {}, "No value lives between two steps.")];
    pictures.replaceChildren(...kept);
  }

  // How many bytes are alive in each step.
  function alive(width, left, x) {
    const height = 90;
    const sums = Array.from({ length: steps }, (_, k) => values.reduce((sum, v) => sum + (v[4] <= k && k <= v[5] ? v[3] : 0), 0));
    const most = Math.max(...sums, 1);
    const y = (n) => 6 + (height - 10) * (1 - n / most);
    const points = sums.flatMap((n, k) => [`${x(k)},${y(n)}`, `${x(k + 1)},${y(n)}`]);
    const strips = sums.map((_, k) =>
      svg("rect", { x: x(k), y: 0, width: x(k + 1) - x(k), height, fill: "transparent", "data-tip": `step ${k}` }),
    );
    return svg(
      "svg",
      { height, viewBox: `0 0 ${width} ${height}`, class: "alive" },
      svg("line", { class: "gridline", x1: left, x2: width, y1: y(most), y2: y(most) }),
      svg("text", { x: 0, y: y(most) + 9 }, `peak ${bytes(most)}`),
      svg("text", { x: 0, y: height - 4 }, "alive"),
      svg("polygon", {
        points: `${x(0)},${height - 4} ${points.join(" ")} ${x(steps)},${height - 4}`,
        fill: "var(--scalar)",
        opacity: 0.35,
      }),
      strips,
    );
  }

  function band(buffer, width, left, x) {
    const mine = [...values.keys()].filter((k) => values[k][1] === buffer);
    const total = buffers[buffer][1];
    // Places to scale, or every boundary the same distance from the next: then small values can be seen beside large ones.
    const edges = [...new Set(mine.flatMap((k) => [values[k][2], values[k][2] + values[k][3]]).concat(0, total))].sort(
      (a, b) => a - b,
    );
    const height = scale.checked ? 190 : Math.min(260, Math.max(56, 17 * (edges.length - 1)));
    const rank = new Map(edges.map((e, k) => [e, k]));
    const y = (at) => 4 + (height - 8) * (scale.checked ? at / total : rank.get(at) / (edges.length - 1));
    const bars = mine.map((k) => {
      const [id, , offset, size, first, last] = values[k];
      return svg("rect", {
        class: "bar",
        x: x(first),
        y: y(offset),
        width: Math.max(1.5, x(Math.min(last, steps) + 1) - x(first)),
        height: Math.max(1, y(offset + size) - y(offset)),
        rx: 1.5,
        fill: nodes[id] ? colour(nodes[id].op) : "var(--scalar)",
        "data-tip": k,
        onclick: nodes[id] ? () => show.node(id) : null,
      });
    });
    return svg(
      "svg",
      { height: height + 6, viewBox: `0 0 ${width} ${height + 6}`, class: "arena", "data-arena": buffers[buffer][2] },
      svg("rect", { class: "frame", x: left, y: 2, width: width - left, height: height - 4, rx: 4 }),
      svg("text", { x: 0, y: 16 }, buffers[buffer][2]),
      svg("text", { x: 0, y: 31 }, bytes(total)),
      svg("text", { x: 0, y: 46 }, plural(mine.length, "value")),
      bars,
    );
  }

  // The parts of the graph below their steps.
  function ruler(width, left, x) {
    const marks = segmentRuns().map(([name, first, last]) => {
      const room = x(last + 1) - x(first);
      const short = name.length * 6.2 < room ? name : name.split(".").pop();
      return [
        svg("line", { class: "gridline", x1: x(first), x2: x(first), y1: 0, y2: 8 }),
        short.length * 6.2 < room
          ? svg("text", { x: (x(first) + x(last + 1)) / 2, y: 18, "text-anchor": "middle" }, short)
          : null,
      ];
    });
    return svg(
      "svg",
      { height: 24, viewBox: `0 0 ${width} 24` },
      svg("line", { class: "gridline", x1: left, x2: width, y1: 1, y2: 1 }),
      svg("text", { x: 0, y: 18 }, `${steps} steps`),
      marks,
    );
  }

  addEventListener("resize", draw);
  draw();
}

function memoryBar(memory) {
  const rows = Object.entries(memory).sort((a, b) => b[1] - a[1]);
  const total = rows.reduce((sum, r) => sum + r[1], 0) || 1;
  return h(
    "div",
    {},
    h(
      "div",
      { class: "stacked" },
      rows.map(([kind, n]) =>
        h("span", { title: `${kind} ${bytes(n)}`, style: `flex: ${n / total}; background: var(--${BUFFER_KINDS[kind]})` }),
      ),
    ),
    h(
      "div",
      { class: "legend" },
      rows.map(([kind, n]) =>
        h("span", {}, h("i", { style: `background: var(--${BUFFER_KINDS[kind]})` }), `${kind} ${bytes(n)}`),
      ),
    ),
  );
}

// Steps in a row that belong to one part of the graph: [name, first, last]. One or two of another part do not break a row: what
// several layers use is computed where the first of them needs it.
function segmentRuns() {
  const of = [];
  data.graph.segments.forEach((s) => s.nodes.forEach((n) => (of[n] = s.name)));
  const runs = [];
  data.steps.forEach((s, k) => {
    const name = of[s.nodes[s.nodes.length - 1]] || of[s.root] || "";
    const [before, last] = runs.length > 1 ? runs.slice(-2) : [null, runs[0]];
    if (before && before[0] === name && last[2] - last[1] < 2) runs.pop();
    const at = runs[runs.length - 1];
    if (at && at[0] === name) at[2] = k;
    else runs.push([name, k, k]);
  });
  return runs;
}
