// A bundle on a device: its variant, its weights in memory, and its steps, compiled when they are first needed.

import { openBundle, type Bundle } from "../bundle/open.js";
import type { Manifest } from "../bundle/manifest.js";
import type { Progress } from "../bundle/fetch.js";
import { openVariant, type OpenVariant } from "../bundle/variants.js";
import { loadWeights } from "../bundle/weights.js";
import type { NDArray } from "../core/arrays.js";
import { UnknownName } from "../core/errors.js";
import { Gpu } from "../gpu/device.js";
import { Executable } from "../gpu/executable.js";
import { allocate } from "../gpu/memory.js";
import { signatureOf } from "../plan/signature.js";
import type { From } from "../protocol.js";
import type { ModelInfo } from "../types.js";
import { Answers } from "./answers.js";
import type { EncoderSettings } from "./embed.js";
import { Embedder } from "./embedder.js";
import type { SamplerSettings } from "./options.js";
import type { CacheSizes } from "./pages.js";
import { PlanWriter } from "./plan_writer.js";
import type { RunFacts } from "./receipt.js";
import type { TemplateSettings, Text, TokenizerSettings } from "./text.js";

/** How a model is loaded. */
export interface LoadSettings {
  from: From;
  variant: string | null;
  cache: boolean;
}

/** What the manifest of a causal bundle says beside what all have. */
export interface CausalManifest {
  ring: number;
  chunk: number;
  failed_token: number;
  sampler: SamplerSettings;
  tokenizer: TokenizerSettings;
  template: { sources: Record<string, string>; variables: Record<string, unknown> } | null;
}

/** A bundle that is loaded. */
export class LoadedModel {
  private readonly opened = new Map<string, Promise<Executable>>();
  private text: Promise<Text> | null = null;
  private loadSeconds = 0;
  private answering: Answers | null = null;
  private embedding: Embedder | null = null;
  private source = "";

  private constructor(
    readonly gpu: Gpu,
    readonly bundle: Bundle,
    private readonly chosen: OpenVariant,
    private readonly shared: readonly GPUBuffer[],
  ) {}

  /** Loads a bundle; what fails leaves nothing behind on the device. */
  static async open(settings: LoadSettings, report: (progress: Progress) => void, signal?: AbortSignal): Promise<LoadedModel> {
    const began = performance.now();
    // Together: the adapter may take as long as the manifest.
    const opening = Gpu.open();
    opening.catch(() => {});
    const bundle = await openBundle(settings.from, { progress: report, signal, cache: settings.cache }).catch((error: unknown) => {
      opening.then((gpu) => gpu.close(), () => {}); // nobody needs it now
      throw error;
    });
    const gpu = await opening;
    try {
      const chosen = await openVariant(bundle.parts, gpu.facts, settings.variant ?? undefined);
      const rows = chosen.variant.shared.map(({ nbytes, name }) => ({ nbytes, label: name }));
      const model = new LoadedModel(gpu, bundle, chosen, await allocate(gpu, rows));
      await model.fill(signal);
      model.source = typeof settings.from === "string" ? settings.from : bundle.parts.source.id;
      model.loadSeconds = (performance.now() - began) / 1000;
      await bundle.finish();
      bundle.parts.meter.enter("ready");
      return model;
    } catch (error) {
      gpu.close();
      throw error;
    }
  }

  get manifest(): Manifest {
    return this.bundle.manifest;
  }

  get name(): string {
    return String(this.manifest.model["name"] ?? "this bundle");
  }

  /** The manifest's entries of causal bundles. */
  get causal(): CausalManifest {
    return this.manifest.json as unknown as CausalManifest;
  }

  get encoder(): EncoderSettings {
    return this.manifest.json["encoder"] as unknown as EncoderSettings;
  }

  get cache(): CacheSizes {
    return this.chosen.variant.cache as unknown as CacheSizes;
  }

  /** "fast" where the bundle's plans round activations to 8 bits; bundles from before say nothing and are exact. */
  get precision(): string {
    return String(this.manifest.model["precision"] ?? "exact");
  }

  get vocab(): number {
    return Number(this.manifest.model["vocab"] ?? 0);
  }

  /** Makes answers; there is one queue of them for the model. */
  get answers(): Answers {
    return (this.answering ??= new Answers(this));
  }

  /** Makes vectors. */
  get embedder(): Embedder {
    return (this.embedding ??= new Embedder(this));
  }

  /** The executable of a step, compiled when it is first asked for. */
  executable(step: string): Promise<Executable> {
    let found = this.opened.get(step);
    if (!found) {
      found = this.compile(step);
      this.opened.set(step, found);
      found.catch(() => this.opened.delete(step));
    }
    return found;
  }

  /** The inputs' table of a step, as the manifest has it. */
  stepInputs(step: string): Record<string, unknown> {
    return this.chosen.variant.steps.get(step)?.inputs ?? {};
  }

  /** The digest of the plan of a step. */
  digest(step: string): string {
    return this.chosen.plans.get(step)?.sha256 ?? "";
  }

  /** Runs a step once with arrays by name. */
  async run(step: string, inputs: Record<string, NDArray>, read: string[] | null): Promise<Record<string, NDArray>> {
    const executable = await this.executable(step);
    return executable.run(inputs, read ? { read } : {});
  }

  /** The tokenizer and the chat template, whose code is loaded when it is first asked for. */
  texts(): Promise<Text> {
    this.text ??= this.loadText();
    return this.text;
  }

  /** What receipts say of the model and the device. */
  get facts(): RunFacts {
    const { facts, device } = this.gpu;
    return {
      manifest: this.manifest,
      variant: this.chosen.variant,
      source: this.source,
      adapter: facts,
      features: [...device.features].sort(),
      limits: facts.limits,
    };
  }

  get info(): ModelInfo {
    const { manifest } = this;
    const isCausal = manifest.kind === "causal";
    const { storage, notStored } = this.bundle.parts;
    return {
      kind: manifest.kind,
      name: this.name,
      model: manifest.model,
      sha256: manifest.sha256,
      variant: this.chosen.variant.name,
      steps: [...this.chosen.variant.steps.keys()],
      signatures:
        manifest.kind === "function"
          ? Object.fromEntries([...this.chosen.plans].map(([step, plan]) => [step, signatureOf(plan)]))
          : null,
      adapter: this.gpu.facts,
      memory: this.gpu.allocated,
      storage: notStored ? "none" : (storage?.kind ?? "none"),
      notStored: notStored && { message: notStored.message, hint: notStored.hint },
      context: isCausal ? this.cache.context : null,
      slots: isCausal ? this.cache.slots : null,
      defaults: isCausal ? this.causal.sampler.defaults : null,
      chat: isCausal && this.causal.template !== null,
      encoder: manifest.kind === "encoder" ? { width: this.encoder.width, maxTokens: this.encoder.max_tokens } : null,
      loadSeconds: this.loadSeconds,
    };
  }

  /** Ends all that is under way with an error. */
  fail(error: unknown): void {
    this.answering?.fail(error);
  }

  /** Frees the device. */
  close(): void {
    this.gpu.close();
  }

  /** Weights stream to the device while kernels are compiled and the tokenizer is read. */
  private async fill(signal?: AbortSignal): Promise<void> {
    const { manifest, parts } = this.bundle;
    const work = [
      this.loadParams().then(() => parts.meter.enter("kernels")),
      ...this.firstSteps().map((step) => this.executable(step)),
      ...(manifest.json["tokenizer"] ? [this.texts()] : []),
    ];
    await Promise.all(work);
    if (signal?.aborted) signal.throwIfAborted();
  }

  /** Writes the bundle's weights to the device: when it is loaded, and when a training starts again. */
  async loadParams(): Promise<void> {
    const writers = new Map<string, PlanWriter>();
    for (const [step, plan] of this.chosen.plans) {
      const writer = new PlanWriter(this.gpu, plan, this.buffers(step));
      for (const { name } of plan.params) if (!writers.has(name)) writers.set(name, writer);
    }
    await loadWeights(this.bundle.parts, (name) => writers.get(name) ?? null, this.gpu.device.queue);
  }

  /** What the first call most likely needs. Others are compiled when they are used. */
  private firstSteps(): string[] {
    const all = [...this.chosen.variant.steps.keys()];
    if (this.manifest.kind === "train") return all.filter((step) => step === "train" || step === "apply");
    if (this.manifest.kind !== "causal") return all;
    const drawn = (this.causal.sampler.defaults["temperature"] ?? 0) > 0;
    return drawn ? ["prefill_sampled", "decode_sampled"] : ["prefill", "decode"];
  }

  private buffers(step: string): (GPUBuffer | null)[] {
    const rows = this.chosen.variant.steps.get(step)?.buffers ?? [];
    return rows.map((row) => (row === null ? null : (this.shared[row] ?? null)));
  }

  private async compile(step: string): Promise<Executable> {
    const plan = this.chosen.plans.get(step);
    if (!plan) {
      const all = [...this.chosen.plans.keys()].join(", ");
      throw new UnknownName(`${this.name} has no step ${step}`, `it has ${all}`, { name: step });
    }
    return Executable.open(this.gpu, plan, { buffers: this.buffers(step) });
  }

  private async loadText(): Promise<Text> {
    const { parts } = this.bundle;
    const { tokenizer, template } = this.causal;
    const lowerCase = this.manifest.kind === "encoder" && this.encoder.lower_case;
    const read = async (file: string): Promise<string> =>
      new TextDecoder("utf-8", { ignoreBOM: true }).decode(await parts.bytes(file));
    const [{ Text }, json, sources] = await Promise.all([
      import("./text.js"),
      read(tokenizer.file),
      Promise.all(Object.entries(template?.sources ?? {}).map(async ([name, file]) => [name, await read(file)] as const)),
    ]);
    const templates: TemplateSettings | null = template && { sources: Object.fromEntries(sources), variables: template.variables };
    return new Text(json, tokenizer, templates, { lowerCase });
  }
}
