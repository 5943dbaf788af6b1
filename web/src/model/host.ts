// The model of a worker, and what happens when its device is lost: the next call loads it again, once.

import type { Progress } from "../bundle/fetch.js";
import { ClosedError, DeviceLost, InputError } from "../core/errors.js";
import { errorData, type ModelEvent } from "../protocol.js";
import { LoadedModel, type LoadSettings } from "./model.js";

// A device that is lost again this soon after it was opened will be lost once more.
const SETTLED_MS = 10_000;

/** Holds the model, and replaces it after its device was lost. */
export class ModelHost {
  private model: LoadedModel | null = null;
  private settings: LoadSettings | null = null;
  private loading: Promise<LoadedModel> | null = null;
  private lost: DeviceLost | null = null;
  private restoredAt = -Infinity;
  private hopeless = false;
  private closed = false;
  private memory = 0;

  constructor(private readonly tell: (event: ModelEvent) => void) {}

  /** Loads the model of this worker. */
  async load(settings: LoadSettings, report: (progress: Progress) => void, signal: AbortSignal): Promise<LoadedModel> {
    if (this.settings) throw new InputError("this worker has a model already", "load another one with its own worker");
    this.settings = settings;
    return this.use(await LoadedModel.open(settings, report, signal));
  }

  /** The model; one whose device was lost is loaded again first, from storage where it is kept. */
  async current(): Promise<LoadedModel> {
    if (this.closed) throw new ClosedError("the model is closed", "load it again");
    if (this.model) return this.model;
    if (!this.settings) throw new InputError("no model is loaded", "load one first");
    this.loading ??= this.restore().finally(() => (this.loading = null));
    return this.loading;
  }

  /** Tells the client what changed: memory grows as steps are compiled. */
  reportInfo(): void {
    const info = this.model?.info;
    if (!info || info.memory === this.memory) return;
    this.memory = info.memory;
    this.tell({ name: "info", info });
  }

  /** Frees the device for good. */
  close(): void {
    this.closed = true;
    this.model?.fail(new ClosedError("the model was closed", "load it again"));
    this.model?.close();
    this.model = null;
  }

  /** Loses the device as a driver would. */
  async loseDevice(): Promise<void> {
    const model = await this.current();
    model.gpu.device.destroy();
    await model.gpu.lost;
  }

  private async restore(): Promise<LoadedModel> {
    if (this.hopeless) {
      throw new DeviceLost(
        `the GPU was lost again within seconds: ${this.lost?.message ?? ""}`,
        "reload the page; if it happens again, close other pages that use the GPU, or update its driver",
      );
    }
    const model = this.use(await LoadedModel.open(this.settings!, () => {}));
    this.restoredAt = performance.now();
    this.tell({ name: "restored" });
    return model;
  }

  private use(model: LoadedModel): LoadedModel {
    if (this.closed) {
      model.close();
      throw new ClosedError("the model was closed while it was loaded", "load it again");
    }
    this.model = model;
    this.memory = model.info.memory;
    void model.gpu.lost.then((error) => this.onLost(model, error));
    return model;
  }

  private onLost(model: LoadedModel, error: DeviceLost): void {
    if (this.closed || this.model !== model) return;
    this.model = null;
    this.lost = error;
    this.hopeless = performance.now() - this.restoredAt < SETTLED_MS;
    model.fail(error);
    this.tell({ name: "lost", error: errorData(error) });
  }
}
