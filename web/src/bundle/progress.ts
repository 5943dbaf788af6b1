// How far a load is: bytes, where they came from, and how long the rest takes at the rate of the last seconds.

export interface Progress {
  phase: "manifest" | "plans" | "weights" | "kernels" | "ready";
  file?: string;
  loaded: number;
  total: number;
  /** Bytes of `loaded` that came from this browser's storage. */
  fromCache: number;
  /** Null until there is a rate to go by. */
  secondsLeft: number | null;
  /** Another tab downloads the same file; this one waits and then reads what is stored. */
  waiting?: boolean;
}

/** Seconds after which a measurement counts half. */
const HALF_LIFE = 3;
/** Seconds of measurements before a rate means something. */
const SETTLED = 1;
/** Seconds between reports: a page redraws no faster. */
const INTERVAL = 0.1;

/** Bytes a second, recent ones counting more; time in which nothing arrives counts too. */
class Rate {
  private bytes = 0;
  private seconds = 0;
  private last: number | null = null;

  add(bytes: number, now: number): void {
    this.pass(now);
    this.bytes += bytes;
  }

  /** The rate now, or null while too little is known. */
  at(now: number): number | null {
    this.pass(now);
    return this.seconds >= SETTLED && this.bytes > 0 ? this.bytes / this.seconds : null;
  }

  private pass(now: number): void {
    const elapsed = this.last === null ? 0 : now - this.last;
    this.last = now;
    const decay = 0.5 ** (elapsed / HALF_LIFE);
    this.bytes *= decay;
    this.seconds = this.seconds * decay + elapsed;
  }
}

/** Counts the bytes of a load and reports them, not too often. */
export class Meter {
  private loaded = 0;
  private fromCache = 0;
  private phase: Progress["phase"] = "manifest";
  private waiting = new Set<string>();
  private reported = -Infinity;
  private readonly network = new Rate();
  private readonly storage = new Rate();
  private downloads = false;
  total = 0;

  constructor(
    private readonly report: ((progress: Progress) => void) | undefined,
    private readonly now: () => number = () => performance.now() / 1000,
  ) {}

  /** A phase begins. */
  enter(phase: Progress["phase"]): void {
    if (phase === this.phase) return;
    this.phase = phase;
    this.emit();
  }

  count(file: string, bytes: number, fromCache: boolean): void {
    this.loaded += bytes;
    if (fromCache) this.fromCache += bytes;
    else this.downloads = true;
    (fromCache ? this.storage : this.network).add(bytes, this.now());
    if (this.now() - this.reported >= INTERVAL || this.loaded >= this.total) this.emit(file);
  }

  /** Whether a file waits for another tab. */
  wait(file: string, waiting: boolean): void {
    if (waiting === this.waiting.has(file)) return;
    if (waiting) this.waiting.add(file);
    else this.waiting.delete(file);
    this.emit(file);
  }

  emit(file?: string): void {
    if (!this.report) return;
    const now = this.now();
    this.reported = now;
    // Storage is so much faster that its rate says nothing about a download.
    const rate = (this.downloads ? this.network : this.storage).at(now);
    this.report({
      phase: this.phase,
      ...(file === undefined ? {} : { file }),
      loaded: this.loaded,
      total: this.total,
      fromCache: this.fromCache,
      secondsLeft: rate === null ? null : Math.max(0, this.total - this.loaded) / rate,
      ...(this.waiting.size ? { waiting: true } : {}),
    });
  }
}
