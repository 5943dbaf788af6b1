// What a training has learnt: parameters and optimizer states on the device, and copies of them.

import { UnknownName } from "../core/errors.js";
import type { Executable } from "../gpu/executable.js";
import type { TrainSection } from "./section.js";

/** What a training needs of the loaded bundle. */
export interface TrainHost {
  readonly section: TrainSection;
  /** The bundle's weights: what is trained starts from them. */
  readonly weights: readonly { name: string; dtype: string; shape: number[] }[];
  /** Whether the adapter is a software one, which shares the processor with everything else. */
  readonly software: boolean;
  /** The executable of a step; after a lost device that of another, with the bundle's weights. */
  executable(step: string): Promise<Executable>;
  /** A small file of the bundle. */
  bytes(file: string): Promise<Uint8Array>;
  /** Uploads the bundle's weights again. */
  reload(): Promise<void>;
}

/** The executables of a train step; `apply` where gradients accumulate first. */
export interface OwnSteps {
  train: Executable;
  apply: Executable | null;
}

/** All that a later run needs to go on, as bytes by name. */
export interface Copy {
  params: ReadonlyMap<string, Uint8Array>;
  states: ReadonlyMap<string, Uint8Array>;
}

/** Reads and writes parameters and states through the steps that have them. */
export class Learnt {
  constructor(private readonly host: TrainHost) {}

  async steps(): Promise<OwnSteps> {
    const train = await this.host.executable("train");
    return { train, apply: this.host.section.accumulate > 1 ? await this.host.executable("apply") : null };
  }

  /** The bytes of all parameters by name. */
  async params(): Promise<Map<string, Uint8Array>> {
    const found = new Map<string, Uint8Array>();
    for (const { name } of this.host.weights) found.set(name, await (await this.stepWith(name)).readParam(name));
    return found;
  }

  async setParams(params: ReadonlyMap<string, Uint8Array>): Promise<void> {
    for (const [name, bytes] of params) (await this.stepWith(name)).writeParam(name, bytes);
  }

  async copy(): Promise<Copy> {
    const states = new Map<string, Uint8Array>();
    for (const [name, exe] of await this.stateSteps()) states.set(name, await exe.readState(name));
    return { params: await this.params(), states };
  }

  async restore({ params, states }: Copy): Promise<void> {
    await this.setParams(params);
    for (const [name, exe] of await this.stateSteps()) exe.writeState(name, states.get(name)!);
  }

  /** The first parameter of a copy that holds NaN or infinity. */
  notFinite({ params }: Copy): string | null {
    const bad = this.host.weights.find(({ name, dtype }) => {
      const bytes = params.get(name)!;
      return dtype === "f32" && new Float32Array(bytes.slice().buffer).some((x) => !Number.isFinite(x));
    });
    return bad?.name ?? null;
  }

  /** The states of a first step; running averages start from the parameters. */
  async resetStates(): Promise<void> {
    const { train, apply } = await this.steps();
    train.resetStates();
    apply?.resetStates();
    const steps = await this.stateSteps();
    for (const [state, param] of Object.entries(this.host.section.averages)) {
      steps.get(state)?.writeState(state, await (await this.stepWith(param)).readParam(param));
    }
  }

  /** For each state a step that has it. */
  private async stateSteps(): Promise<Map<string, Executable>> {
    const { train, apply } = await this.steps();
    const found = new Map<string, Executable>();
    for (const exe of [train, apply]) for (const { name } of exe?.plan.states ?? []) found.set(name, exe!);
    return found;
  }

  /** A step that has a param: what is frozen may be read by others alone. */
  private async stepWith(param: string): Promise<Executable> {
    for (const step of ["train", "evaluate", ...this.host.section.functions]) {
      const exe = await this.host.executable(step);
      if (exe.plan.params.some(({ name }) => name === param)) return exe;
    }
    throw new UnknownName(`no plan has the parameter '${param}'`, "export the train step again", { name: param });
  }
}
