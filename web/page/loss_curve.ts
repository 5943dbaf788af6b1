// The loss of each step as a curve: drawn as SVG in the page's colours, with its numbers in words for those who do not see it.

const NAMESPACE = "http://www.w3.org/2000/svg";
const HEIGHT = 260;
const FRAME = { left: 52, right: 12, top: 10, bottom: 36 };
/** Points of a line: more are not seen. Each stands for a few steps, with their mean. */
const MOST_POINTS = 400;

interface Point {
  step: number;
  loss: number;
}

/** A curve that grows step by step. */
export class LossCurve {
  readonly element: SVGSVGElement;
  private points: Point[] = [];
  private readonly raw = svg("path", { class: "raw" });
  private readonly smooth = svg("path", { class: "smooth" });
  private readonly axes = svg("g", { class: "axes" });
  private drawing = false;

  constructor() {
    this.element = svg("svg", { role: "img", class: "curve" });
    this.element.append(this.axes, this.raw, this.smooth);
    // As many units as pixels: its letters are as large on a phone.
    new ResizeObserver(() => this.later()).observe(this.element);
    this.draw();
  }

  /** Adds the loss of a step. One that was seen before is there again after a failure: the curve goes on from it. */
  add(step: number, loss: number): void {
    while (this.points.length && this.points[this.points.length - 1]!.step >= step) this.points.pop();
    if (Number.isFinite(loss)) this.points.push({ step, loss });
    this.later();
  }

  clear(): void {
    this.points = [];
    this.later();
  }

  /** The curve in words. */
  get words(): string {
    const [first, last] = [this.points[0], this.points[this.points.length - 1]];
    if (!first || !last) return "Loss curve: no step yet";
    const least = this.points.reduce((a, b) => (b.loss < a.loss ? b : a));
    const range = `from ${number(first.loss)} at step ${first.step} to ${number(last.loss)} at step ${last.step}`;
    return `Loss curve: ${range}, lowest ${number(least.loss)} at step ${least.step}`;
  }

  private later(): void {
    if (this.drawing) return;
    this.drawing = true;
    requestAnimationFrame(() => {
      this.drawing = false;
      this.draw();
    });
  }

  private draw(): void {
    this.element.setAttribute("aria-label", this.words);
    const width = this.element.clientWidth || 640;
    this.element.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    const shown = thinned(this.points);
    const last = this.points[this.points.length - 1]?.step ?? 1;
    const losses = shown.map((p) => p.loss);
    const [low, high] = losses.length ? [Math.min(...losses), Math.max(...losses)] : [0, 1];
    const [bottom, top] = low === high ? [low - 0.5, high + 0.5] : [low, high];
    const x = (step: number): number => FRAME.left + (step / Math.max(last, 1)) * (width - FRAME.left - FRAME.right);
    const y = (loss: number): number =>
      FRAME.top + ((top - loss) / (top - bottom)) * (HEIGHT - FRAME.top - FRAME.bottom);
    this.raw.setAttribute("d", line(shown, x, y));
    this.smooth.setAttribute("d", line(averaged(shown), x, y));
    this.axes.replaceChildren(
      ...ticks(bottom, top, 5).flatMap((loss) => [
        svg("line", { x1: FRAME.left, x2: width - FRAME.right, y1: y(loss), y2: y(loss) }),
        label(FRAME.left - 8, y(loss) + 4, number(loss), "end"),
      ]),
      ...ticks(0, last, width / 100).map((step) => label(x(step), HEIGHT - FRAME.bottom + 16, String(Math.round(step)), "middle")),
      label((FRAME.left + width) / 2, HEIGHT - 4, "step", "middle"),
      rotated(12, (HEIGHT - FRAME.bottom) / 2, "loss"),
    );
  }
}

function svg<K extends keyof SVGElementTagNameMap>(
  tag: K,
  attributes: Record<string, string | number>,
): SVGElementTagNameMap[K] {
  const element = document.createElementNS(NAMESPACE, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  return element;
}

function label(x: number, y: number, text: string, anchor: string): SVGTextElement {
  const element = svg("text", { x, y, "text-anchor": anchor });
  element.textContent = text;
  return element;
}

function rotated(x: number, y: number, text: string): SVGTextElement {
  const element = label(x, y, text, "middle");
  element.setAttribute("transform", `rotate(-90 ${x} ${y})`);
  return element;
}

function line(points: Point[], x: (step: number) => number, y: (loss: number) => number): string {
  return points.map((p, i) => `${i ? "L" : "M"}${x(p.step).toFixed(1)} ${y(p.loss).toFixed(1)}`).join("");
}

/** Groups of neighbours by their mean, so that no more than can be seen are left. */
function thinned(points: Point[]): Point[] {
  const size = Math.ceil(points.length / MOST_POINTS);
  if (size <= 1) return points;
  const found: Point[] = [];
  for (let at = 0; at < points.length; at += size) {
    const group = points.slice(at, at + size);
    const loss = group.reduce((sum, p) => sum + p.loss, 0) / group.length;
    found.push({ step: group[group.length - 1]!.step, loss });
  }
  return found;
}

/** A running mean: the trend behind the noise of single batches. */
function averaged(points: Point[]): Point[] {
  let [sum, weight] = [0, 0];
  return points.map(({ step, loss }) => {
    [sum, weight] = [0.9 * sum + loss, 0.9 * weight + 1];
    return { step, loss: sum / weight };
  });
}

/** Round numbers between two bounds. */
function ticks(from: number, to: number, most: number): number[] {
  const rough = (to - from) / most;
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const size = power * ([1, 2, 5, 10].find((factor) => factor * power >= rough) ?? 10);
  const found: number[] = [];
  for (let k = Math.ceil(from / size); k * size <= to + size * 1e-9; k++) found.push(k * size);
  return found;
}

/** `2.31`, `0.0042`: three digits that matter. */
export function number(value: number): string {
  const digits = Number(value.toPrecision(3));
  return Math.abs(digits) < 1e-4 && digits !== 0 ? digits.toExponential() : String(digits);
}
