// Text from a character model that trains: each character is drawn on the device, which keeps the text as a state.

import { InputError, UnknownName } from "../core/errors.js";
import type { Executable } from "../gpu/executable.js";
import type { TextTask } from "./section.js";
import type { SampleOptions } from "./types.js";

// Characters on the device before the first of them is read.
const AHEAD = 16;

/** Draws a text; it begins with the prompt. */
export async function sampleText(exe: Executable, task: TextTask, options: SampleOptions): Promise<string> {
  const letters = Array.from(task.letters);
  const { length = 200, temperature = 0.8, seed = 0 } = options;
  const isCount = (n: number, most: number): boolean => Number.isInteger(n) && n >= 0 && n <= most;
  if (!isCount(length, 1e6) || !(temperature >= 0) || !isCount(seed, 2 ** 32 - 1)) {
    throw new InputError(
      `a text of ${length} characters at temperature ${temperature} with the seed ${seed}`,
      "the length is a whole number, the temperature at least 0, the seed in 0…2³²−1",
    );
  }
  const prompt = options.prompt || (letters.includes("\n") ? "\n" : letters[0]!);
  const ids = Array.from(prompt, (character) => {
    const id = letters.indexOf(character);
    if (id >= 0) return id;
    throw new UnknownName(
      `the model knows no character '${character}'`,
      `it knows ${letters.join("").trim()}`,
      { character },
    );
  });
  const window = new Int32Array(task.context);
  window.set(ids.slice(-window.length));
  exe.writeState(task.window, new Uint8Array(window.buffer));
  exe.writeState(task.length, new Uint8Array(Int32Array.of(ids.length).buffer));
  const inputs = {
    key: { dtype: "u32" as const, shape: [2], data: Uint32Array.of(seed, 0) },
    temperature: { dtype: "f32" as const, shape: [], data: Float32Array.of(temperature) },
  };
  const drawn: number[] = [];
  const flying: Promise<void>[] = [];
  for (let i = 0; i < length; i++) {
    if (flying.length >= AHEAD) await flying.shift();
    const { result } = exe.submit(inputs, { read: ["token"] });
    flying.push(result.then((found) => void drawn.push(Number(found["token"]!.data[0]))));
  }
  await Promise.all(flying);
  return prompt + drawn.map((id) => letters[id]).join("");
}
