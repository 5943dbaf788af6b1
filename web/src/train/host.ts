// What a training needs of the worker's model: steps, files, and the bundle's weights again.

import type { ModelHost } from "../model/host.js";
import type { LoadedModel } from "../model/model.js";
import type { Executable } from "../gpu/executable.js";
import { trainSection, type TrainSection } from "./section.js";
import type { TrainHost } from "./learnt.js";

/** The bundle of a worker as a training uses it; after a lost device its steps are those of the next. */
export class BundleTraining implements TrainHost {
  readonly section: TrainSection;
  readonly weights: { name: string; dtype: string; shape: number[] }[];
  readonly software: boolean;

  private constructor(
    private readonly models: ModelHost,
    model: LoadedModel,
  ) {
    this.section = trainSection(model.manifest.json);
    this.weights = model.manifest.weights.map(({ name, dtype, shape }) => ({ name, dtype, shape: [...shape] }));
    this.software = model.gpu.facts.software;
  }

  static async open(models: ModelHost): Promise<BundleTraining> {
    return new BundleTraining(models, await models.current());
  }

  async executable(step: string): Promise<Executable> {
    return (await this.models.current()).executable(step);
  }

  async bytes(file: string): Promise<Uint8Array> {
    return (await this.models.current()).bundle.parts.bytes(file);
  }

  async reload(): Promise<void> {
    await (await this.models.current()).loadParams();
  }
}
