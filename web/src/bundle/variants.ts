// Which variant of a bundle runs here: the first whose plans need no more than the adapter has.

import { FormatError, LimitError, UnknownName, type PumiceError } from "../core/errors.js";
import { unmetNeeds, type AdapterFacts } from "../gpu/device.js";
import { readPlan, type PlanFile } from "../plan/file.js";
import type { Parts } from "./fetch.js";
import { commonFiles, NEWER_HINT, planNames, type Variant } from "./manifest.js";

/** A variant with its plans, by the names of its steps. */
export interface OpenVariant {
  variant: Variant;
  plans: Map<string, PlanFile>;
}

/** The variant for this adapter, or the one of this name. Only the plans of variants that may fit are loaded. */
export async function openVariant(parts: Parts, facts: AdapterFacts, wanted?: string): Promise<OpenVariant> {
  const { variants } = parts.manifest;
  if (wanted !== undefined && !variants.some((variant) => variant.name === wanted)) {
    throw new UnknownName(
      `the bundle has no variant ${wanted}`,
      `it has ${variants.map((variant) => variant.name).join(", ")}`,
      { name: wanted },
    );
  }
  parts.meter.enter("plans");
  const expected = commonFiles(parts.manifest).map((entry) => entry.name);
  let refused: PumiceError | null = null;
  for (const variant of variants) {
    if (wanted === undefined ? !mayRun(variant, facts) : variant.name !== wanted) continue;
    expected.push(...planNames(variant));
    await parts.expect(expected);
    const plans = await readPlans(parts, variant);
    const unmet = [...plans.values()].map((plan) => unmetNeeds(plan, facts)).find((error) => error !== null);
    if (!unmet) return { variant, plans };
    refused = unmet;
  }
  throw (
    refused ??
    new LimitError(
      "no variant of the bundle is for this adapter",
      "export the model again with `pumice export --web`: it adds a variant that every browser runs",
      { adapter: facts.description, variants: variants.map((variant) => variant.name) },
    )
  );
}

/** Whether what the manifest says of a variant rules the adapter out. */
function mayRun({ caps }: Variant, facts: AdapterFacts): boolean {
  const has = (feature: string): boolean => facts.features.includes(feature);
  return (
    (!caps.f16 || has("shader-f16")) && (!caps.subgroups || has("subgroups")) && (!caps.software || facts.software)
  );
}

async function readPlans(parts: Parts, variant: Variant): Promise<Map<string, PlanFile>> {
  const files = new Map(
    planNames(variant).map((name) => [name, new Uint8Array(parts.manifest.files.get(name)?.bytes ?? 0)]),
  );
  await parts.streamAll(files.keys(), (name, chunk, offset) => files.get(name)?.set(chunk, offset));
  const plans = await Promise.all(
    [...files].map(async ([name, bytes]) => [name, await readNamed(name, bytes)] as const),
  );
  const byName = new Map(plans);
  return new Map([...variant.steps].map(([step, { plan }]) => [step, byName.get(plan) as PlanFile]));
}

/** A plan; errors name its file. */
async function readNamed(name: string, bytes: Uint8Array): Promise<PlanFile> {
  try {
    return await readPlan(bytes);
  } catch (error) {
    if (!(error instanceof FormatError)) throw error;
    const what = String(error.fields["what"] ?? error.message);
    const hint = Number(error.fields["version"]) > 0 ? NEWER_HINT : error.hint;
    throw new FormatError(`${name}: ${what}`, hint, { ...error.fields, file: name });
  }
}
