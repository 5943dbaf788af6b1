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
/** Counts the bytes of a load and reports them, not too often. */
export declare class Meter {
    private readonly report;
    private readonly now;
    private loaded;
    private fromCache;
    private phase;
    private waiting;
    private reported;
    private readonly network;
    private readonly storage;
    private downloads;
    total: number;
    constructor(report: ((progress: Progress) => void) | undefined, now?: () => number);
    /** A phase begins. */
    enter(phase: Progress["phase"]): void;
    count(file: string, bytes: number, fromCache: boolean): void;
    /** Whether a file waits for another tab. */
    wait(file: string, waiting: boolean): void;
    emit(file?: string): void;
}
