// Runs whose kernels are being compiled, in the order of their calls: on a device none overtakes another, as the plans
// of a model share their states.

interface Waiting {
  ready: boolean;
  start: () => void;
}

/** The runs of a device that wait for the compiler. */
export class RunQueue {
  private readonly waiting: Waiting[] = [];

  get isEmpty(): boolean {
    return this.waiting.length === 0;
  }

  /** Starts a run when its kernels are compiled and all earlier runs were started; gives its result. */
  wait<T>(compiled: Promise<unknown>, start: () => Promise<T>): Promise<T> {
    return new Promise<T>((resolve, reject) => {
      const entry: Waiting = {
        ready: false,
        start: () => {
          try {
            resolve(start());
          } catch (error) {
            reject(error as Error);
          }
        },
      };
      this.waiting.push(entry);
      const settled = (): void => {
        entry.ready = true;
        this.startReady();
      };
      compiled.then(settled, (error: Error) => {
        reject(error);
        entry.start = () => undefined;
        settled();
      });
    });
  }

  /** Starts all of them now, before something that has to come after; the device waits for the compiler then. */
  flush(): void {
    for (const run of this.waiting.splice(0)) run.start();
  }

  private startReady(): void {
    while (this.waiting[0]?.ready) this.waiting.shift()!.start();
  }
}
