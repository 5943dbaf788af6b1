"""Deliberately wrong kernels: edits of the WGSL of a case's plan, each a fault that a kernel might really have."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pumice.plan.plan import Plan


@dataclass(frozen=True)
class Mutant:
    """An edit of the first match of `pattern` in the entry point of a case's kernel; `step` counts from the last one."""

    case: str
    fault: str
    pattern: str
    becomes: str
    step: int = -1

    @property
    def name(self) -> str:
        return f"{self.case}: {self.fault}"


def mutate(plan: Plan, mutant: Mutant) -> Plan:
    """The plan with the mutant's edit; one that changes nothing is an error."""
    changed, count = re.subn(mutant.pattern, mutant.becomes, _entry(plan, mutant.step)[1], count=1)
    assert count, f"{mutant.name}: its pattern matches nothing, the kernel must have changed"
    return _with_entry(plan, mutant.step, changed)


def scale_one_element(plan: Plan, value: int, element: int, factor: float) -> Plan:
    """The plan whose last kernel stores one element of a value, or the vector that it is in, times a factor."""
    written = [k for k, b in enumerate(plan.steps[-1].bindings) if b.access == "write"]
    # Of a value that it writes by way of a temporary, that is the one.
    written = [k for k in written if plan.steps[-1].bindings[k].value == value][:1] or written[-1:]
    pattern = rf"\b(b{written[0]})\[(.+)\] = (.+);"
    functions, entry = _entry(plan, -1)
    at = element // 4 if re.search(rf"\bb{written[0]}: array<vec4<f32>>", functions) else element
    scaled = rf"\1[\2] = (\3) * select(1.0, {factor}, (\2) == {at}u);"
    changed, count = re.subn(pattern, scaled, entry)
    assert count, "the last kernel has no store"
    return _with_entry(plan, -1, changed)


def _entry(plan: Plan, step: int) -> tuple[str, str]:
    """A kernel's functions, and its entry point."""
    functions, start, entry = plan.kernels[plan.steps[step].kernel].wgsl.partition("fn main(")
    return functions, start + entry


def _with_entry(plan: Plan, step: int, entry: str) -> Plan:
    index = plan.steps[step].kernel
    kernels = list(plan.kernels)
    # Not ours any more: a wrong index must not reach beyond its buffer.
    kernels[index] = replace(kernels[index], wgsl=_entry(plan, step)[0] + entry, origin="file")
    return replace(plan, kernels=tuple(kernels))


# What many kernels have in common.
_RESIDUAL = r"= \((v\d+|result) \+ (v\d+)\);"
_ROW_LOOP = r"(j\d+) < (end\d+); "

MUTANTS: tuple[Mutant, ...] = (
    Mutant("map", "one element from its neighbour", r"= b0\[w\]", "= b0[select(w, w - 1u, w == 317u)]"),
    Mutant("map", "the bound is one short", r"w < 630u", "w < 629u"),
    Mutant("map", "an element is never written", r"w < 630u", "w < 630u && w != 100u"),
    Mutant("map", "the broadcast row is one short", r"w % 70u", "w % 69u"),
    Mutant("map", "no relu", r"pm_max\((\w+), 0\.0\)", r"\1"),
    Mutant("map", "no residual", r"\((\w+) \+ \w+\)", r"(\1)"),
    Mutant("map f16", "lanes swapped", r"\| \(pm_f16_bits\((\w+)\) << 16u\)", r"| (pm_f16_bits(lane1) << 16u)"),
    Mutant(
        "map f16",
        "one element off by one step of f16",
        r"pm_f16_bits\(lane1\)",
        "(pm_f16_bits(lane1) + select(0u, 1u, w == 99u))",
    ),
    Mutant("map f16", "rounds down, not to nearest", r"pm_f16_bits\(lane1\)", "pm_f16_bits(lane1 * 0.9998)"),
    Mutant("movement", "the seam is one off", r"< 9u\)", "< 8u)"),
    Mutant("movement", "a stride is one off", r"\* 70u", "* 69u"),
    Mutant("movement", "the flip is one off", r"69u - ", "68u - "),
    Mutant("gather", "the index is one off in one row", r"b1\[\(\(", "b1[((select(0u, 1u, i2 == 20u) + "),
    Mutant("gather", "the width is one off", r"\* 17u", "* 16u"),
    Mutant("row sum", "the last term is dropped", _ROW_LOOP, r"\1 + 1u < \2; "),
    Mutant(
        "row sum",
        "one term is dropped in one row",
        r"acc = \(acc \+ (\w+)\)",
        r"acc = (acc + select(\1, 0.0, row == 3u && j2 == 77u))",
    ),
    Mutant("row sum", "the last lane's part is lost", r"if \(sg_lane == 0u\)", "if (sg_lane == 0u && lid + sg_size < 64u)"),
    Mutant("row sum", "one row off by 0.01 %", r"\[row\] = (\w+);", r"[row] = \1 * select(1.0, 1.0001, row == 3u);"),
    Mutant(
        "row sum",
        "an early sum of the last term",
        r"acc = \(acc \+ (\w+)\)",
        r"acc = (acc + \1 * select(1.0, 0.999, j2 == 299u))",
    ),
    Mutant("column sum", "one part is dropped", r"select\(0u, 2u, ", "select(0u, 1u, "),
    Mutant("column sum", "the parts overlap", r"part \* 150u \+ 150u", "part * 150u + 151u", step=-2),
    Mutant("column sum", "a fold stops early", r"k > 0u", "k > 1u", step=-2),
    Mutant("row max", "only the first elements are seen", _ROW_LOOP, r"\1 < 64u; "),
    Mutant("row max", "the greatest so far is rounded", r"pm_max\(acc, (\w+)\)", r"pm_max(acc, \1 * 0.99999)"),
    Mutant("argmax", "the last of equals wins, and of the rest too", r"(\w+) > best", r"\1 >= best - 1u"),
    Mutant("argmax", "only the first lanes are seen", r"lid; j2 <", "lid % 32u; j2 <"),
    Mutant("softmax", "one term is missing in the sum", r"total \+= (\w+);", r"if (j6 != 299u) { total += \1; }"),
    Mutant("softmax", "the operand of exp is off by 0.01 %", r"pm_exp\((.+?)\);", r"pm_exp((\1) * 1.0001);"),
    Mutant("softmax", "half precision in exp", r"pm_exp\((.+?)\);", r"quantizeToF16(pm_exp(\1));"),
    Mutant("softmax", "one row is not normalised exactly", r"\* scale11", "* scale11 * select(1.0, 1.0001, row == 2u)"),
    Mutant("layer norm", "the mean counts one too few", r"/ f32\(1031u\);", "/ f32(1030u);"),
    Mutant("layer norm", "the variance counts one too few", r"/ f32\(1031u\) \+", "/ f32(1030u) +"),
    Mutant("layer norm", "no eps", r"\+ 9\.\d+e-06f", "+ 0.0f"),
    Mutant("layer norm", "no bias", r" \+ (v\d+);\n    b3", r";\n    _ = \1;\n    b3"),
    Mutant("layer norm", "the last square is dropped", r"squares \+= (.+);", r"if (j7 != 1030u) { squares += \1; }"),
    Mutant("rms norm", "the weight is one off at the end", r"= b1\[j7\]", "= b1[min(j7, 1029u)]"),
    Mutant("rms norm", "one term counts twice", r"squares \+= (.+);", r"squares += \1; if (j2 == 5u) { squares += \1; }"),
    Mutant("scan", "the carry is lost", r"carry \+= total", "carry = 0.0"),
    Mutant("scan", "exclusive, not inclusive, at one place", r"sums\[k\];\n", "select(sums[k], 0.0, i6 == 9u);\n"),
    Mutant("scan", "the sums of earlier subgroups are one short", r"g < lid / sg_size", "g + 1u < lid / sg_size"),
    Mutant("loss", "the running total is not rescaled", r"total \* exp\(top - higher\)", "total"),
    Mutant("loss", "the last class is not counted", _ROW_LOOP, r"\1 + 1u < \2; "),
    Mutant("loss", "the target is one off", r"target_class9\)\]", "target_class9 ^ 1u)]"),
    Mutant("loss gradient", "the target is one off", r"(i1), t4", r"\1, t4 + 1u"),
    Mutant("loss gradient", "the loss of another row", r"b3\[i2\]", "b3[max(i2, 1u) - 1u]"),
    Mutant("matmul tiles", "the last column of tiles ends early", r"n < 70u", "n < 69u"),
    Mutant("matmul tiles", "the edge reads one row too few", r"min\(m0 \+ g5 \* 4u \+ 1u, 69u\)", "min(m0 + g5 * 4u + 1u, 68u)"),
    Mutant("matmul tiles", "the last term of K is dropped", r"k_next \+ k4 < 66u", "k_next + k4 < 65u"),
    Mutant("matmul tiles", "a row of B is read twice", r"k_next \* 70u", "(k_next - select(0u, 1u, k_next == 64u)) * 70u"),
    Mutant("matmul tiles", "lanes of a vector swapped", r"left0\.y \* right0;", "left0.y * right0.yxzw;"),
    Mutant("matmul tiles", "no barrier before the tile is read", r"workgroupBarrier\(\);\n    let k_next", "let k_next"),
    Mutant(
        "matmul tiles", "stale tile: no barrier before the next", r"workgroupBarrier\(\);\n  }\n  var results", "}\n  var results"
    ),
    Mutant("matmul tiles", "no bias", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("matmul tiles", "no activation", r"pm_max\((\w+), 0\.0\)", r"\1"),
    Mutant("matmul naive", "the last term is dropped", r"k < 7u", "k < 6u"),
    Mutant("matmul naive", "a stride is one off", r"k \* 3u", "k * 2u"),
    Mutant("matvec across", "one part is dropped", r"i < 2u; i\+\+", "i < 1u; i++"),
    Mutant("matvec across", "one lane of the unrolled loop is dropped", r" \+ b1\[\(row4 \+ k15\)\] \* w24;", ";"),
    Mutant("matvec across", "the rest of K is dropped", r"for \(; k < 300u", "for (; k < 299u"),
    Mutant("matvec along", "the last vector is dropped", r"i < 75u", "i < 74u"),
    Mutant("matvec along", "one lane of the sum is dropped", r"vec4<f32>\(1\.0\)", "vec4<f32>(1.0, 1.0, 1.0, 0.0)"),
    Mutant("split k", "one part is dropped", r"acc = (.+) \+ \w+;", r"acc = \1;"),
    Mutant(
        "split k", "a part is one term short", r"left0\.w \* right0;", "left0.w * right0 * select(1.0, 0.0, k0 == 64u);", step=-2
    ),
    Mutant("qmatvec", "the offset of one lane is 7, not 8", r"- 8\.0 \*", "- select(8.0, 7.0, lane == 3u) *"),
    Mutant("qmatvec", "nibbles swapped", r"q\d+ >> 4u\) & 0x0f0f0f0fu", "q19 >> 0u) & 0x0f0f0f0fu"),
    Mutant("qmatvec", "the scale of another block", r"d20 \* \(", "d20 * select(1.0, 1.001, i9 == 5u) * ("),
    Mutant("qmatvec", "no residual", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("qmatvec", "one lane of the fold is dropped", r"i < 32u; i\+\+", "i < 31u; i++"),
    Mutant("qmatvec k-quants", "a minimum is not subtracted", r" \+ s35 \* x58;", ";"),
    Mutant(
        "qmatvec k-quants", "the upper bits of a scale are lost", r"\(w20\.w >> shift24\) & mask27", "(w20.w >> shift24) & 0u"
    ),
    Mutant("qmatmul", "the tile's last column ends early", r"n < 65u", "n < 64u"),
    Mutant("qmatmul", "no residual", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("qmatmul", "a row of weights is one off", r"\* 4u \+ 2u, 64u\)", "* 4u + 1u, 64u)"),
    Mutant("attention", "the mask is one off", r"i32\(position\) <= offset", "i32(position) < offset"),
    Mutant("attention", "earlier chunks are not rescaled", r"sum1_0 \*= keep20;", ""),
    Mutant("attention", "the total is not rescaled", r"total\[lid\] \* keep\[lid\]", "total[lid]"),
    Mutant("attention", "the last key of a chunk is dropped", r"i < 8u; i\+\+", "i < 7u; i++"),
    Mutant("attention", "stale keys: the scores need no barrier", r"workgroupBarrier\(\);\n    let key = ", "let key = "),
    Mutant("attention", "the scale is 1 % off for one query", r"\* 0\.25f;", "* select(0.25f, 0.2525f, e / 4u == 3u);"),
    Mutant("attention of one token", "a key is dropped", r"c0 < key_end; c0", "c0 + 12u < key_end; c0"),
    Mutant("attention of one token", "one group's values are not rescaled", r"total1 = total1 \* keep62", "total1 = total1"),
    Mutant("attention blocks", "the total of one row is not rescaled", r"total1 \* keep1", "total1"),
    Mutant("attention blocks", "a value is dropped", r"sum1 \+= w1\.w \* v79;", ""),
    Mutant("attention gradient", "the last query is dropped", r"row_end = select\(0u, 12u", "row_end = select(0u, 11u"),
    Mutant("attention gradient", "the total of dy is not subtracted", r"\(dp_0 - of_row52\)", "(dp_0 - of_row52 * 0.999)"),
    Mutant("attention gradient", "one key's row", r"(let found\d+) = sum_a1_0", r"\1 = sum_a1_0 * 1.001"),
    Mutant("attention gradient", "one value's row", r"(let found\d+) = sum_b1_0", r"\1 = sum_b1_0 * 1.001"),
    Mutant("attention gradient", "keys get what is due to values", r"(let found\d+) = sum_a0_0", r"\1 = sum_b0_0"),
    Mutant("conv", "the padding is one off", r"4294967295u \+ i4", "0u + i4"),
    Mutant("conv", "the last tap is dropped", r"k13 < 3u", "k13 < 2u"),
    Mutant("conv", "the edge reads beyond x", r"\(at9 \+ k13\) < 8u", "(at9 + k13) <= 8u"),
    Mutant("conv", "no bias", r"acc \+ b2\[channel22\]", "acc + 0.0 * b2[channel22]"),
    Mutant("conv weight gradient", "the last entry of the batch is dropped", r"k11 < 2u", "k11 < 1u"),
    Mutant("conv weight gradient", "the last row is dropped", r"k12 < 9u", "k12 < 8u"),
    Mutant("conv input gradient", "a tap is read twice", r"k22 \* 2u", "k22 * 1u"),
    Mutant("conv input gradient", "channels are one short", r"k20 < 6u", "k20 < 5u"),
    Mutant("depthwise conv", "a channel's weights are another's", r"i2 \* 9u", "max(i2, 1u) * 9u"),
    Mutant("scatter", "the last update is dropped", r"t < 257u", "t < 256u"),
    Mutant("scatter", "what was there is lost", r"var sum = b0\[i\]", "var sum = b0[i] * 0.0"),
    Mutant("scatter along", "the last update is dropped", r"t < 257u", "t < 256u"),
    Mutant("compact", "the block before is not counted", r"b < wg;", "b + 1u < wg;", step=-2),
    Mutant("compact", "the last flag is not read", r"row < 3000u", "row < 2999u", step=-2),
    Mutant("compact", "the count is one short", r"b2\[0u\] = at", "b2[0u] = at - 1u", step=-2),
    Mutant("compact", "rows behind the last one are not zeros", r"var value = 0\.0", "var value = 1e-6"),
    Mutant("compact", "rows are one late", r"b0\[1u \+ i\]", "b0[max(i, 1u)]"),
    Mutant("grouped matmul", "groups end a row early", r"m < m_end", "m + 1u < m_end"),
    Mutant("grouped matmul", "a group has another's weights", r"\(group \* 84u\)", "(min(group, 1u) * 84u)"),
    Mutant("grouped matmul", "the last group counts as none", r"group < 3u", "group < 2u"),
    Mutant(
        "grouped matmul", "a group begins a row late", r"= first_row \+", "= first_row + select(0u, 1u, low == 1u) +", step=-2
    ),
    Mutant("grouped matmul", "one tile is not counted", r"tiles_before \* 1u", "(tiles_before - 1u)", step=-2),
    Mutant("grouped weight gradient", "the last row of a group is dropped", r"1u\] - start", "1u] - start - 1u"),
    Mutant("grouped weight gradient", "a group begins a row early", r"\(start \* 12u\)", "((max(start, 1u) - 1u) * 12u)"),
    Mutant("sort", "ties and neighbours in the last block", r"places\[i\]\)", "places[i ^ select(0u, 1u, i == 1000u)])"),
    Mutant(
        "sort",
        "a value is its neighbour's",
        r"= places\[i\];\n      let v",
        "= places[i ^ select(0u, 1u, i == 1000u)];\n      let v",
    ),
    Mutant("sort", "one comparison is skipped", r"t < 512u", "t < 511u"),
    Mutant("top k", "one of the first round's best is lost", r"at < 80u", "at < 80u && at != 3u"),
    Mutant("top k", "values are those one place on", r"= places\[i\];\n      let v", "= places[i + 1u];\n      let v"),
    Mutant("norm gradient", "one term is dropped", r"along \+= (.+);", r"if (j2 != 1000u) { along += \1; }"),
    Mutant("norm gradient", "the mean counts one too few", r"\* all11 / f32\(1031u\)", "* all11 / f32(1030u)"),
    Mutant("norm parameter gradient", "the last slice of rows is dropped", r"select\(0u, 9u, ", "select(0u, 8u, "),
    Mutant("norm parameter gradient", "the last row of a slice is dropped", r"r < count", "r + 1u < count", step=-2),
    Mutant("norm parameter gradient", "a column of the bias is its neighbour's", r"row - 24u", "max(row, 25u) - 24u"),
    Mutant("mean pool", "the window's last column is dropped", r"j15 < end13", "j15 + 1u < end13"),
    Mutant("mean pool", "the divisor is one off", r"f32\(9u\)", "f32(8u)"),
    Mutant("max pool gradient", "ties all get it", r"select\(0\.0, (\w+), first17\)", r"\1"),
    Mutant("upsample", "the share is one off", r"% 18u", "% 17u"),
    Mutant("upsample", "the last element repeats too early", r"low10 \+ 1u, 6u", "low10 + 1u, 5u"),
    Mutant("rope", "the sign of one half", r"select\(-1\.0, 1\.0", "select(1.0, 1.0"),
    Mutant("rope", "the position is one off", r"b1\[\(\(i3 \* 8u", "b1[((max(i3, 1u) * 8u"),
    Mutant("random normal", "the counter's second word", r"w, 1u\)", "w, 0u)"),
    Mutant("random normal", "2 pi to four digits", r"6\.283185307179586", "6.283"),
)
