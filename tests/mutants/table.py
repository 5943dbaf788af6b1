"""Deliberately wrong kernels: edits of the WGSL of a case's plan, each a fault that a kernel might really have."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from pumice.plan.plan import Plan


@dataclass(frozen=True)
class Mutant:
    """An edit of the first match of `pattern` in the entry point of a case's kernel, or in the functions that it calls.

    `step` counts from the last one.
    """

    case: str
    fault: str
    pattern: str
    becomes: str
    step: int = -1
    functions: bool = False

    @property
    def name(self) -> str:
        return f"{self.case}: {self.fault}"


class NoMatch(Exception):
    """A mutant's pattern matches nothing, or what it matches stays as it is: the kernel must have changed."""


def mutate(plan: Plan, mutant: Mutant) -> Plan:
    """The plan with the mutant's edit; one that changes nothing raises NoMatch."""
    functions, entry = _entry(plan, mutant.step)
    if mutant.functions:
        functions = re.sub(mutant.pattern, mutant.becomes, functions, count=1)
    else:
        entry = re.sub(mutant.pattern, mutant.becomes, entry, count=1)
    if (functions, entry) == _entry(plan, mutant.step):
        variant = plan.steps[mutant.step].variant
        raise NoMatch(f"{mutant.name}: its pattern {mutant.pattern!r} matches nothing in the kernel {variant!r}")
    return _with_entry(plan, mutant.step, functions, entry)


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
    return _with_entry(plan, -1, functions, changed)


def _entry(plan: Plan, step: int) -> tuple[str, str]:
    """A kernel's functions, and its entry point."""
    functions, start, entry = plan.kernels[plan.steps[step].kernel].wgsl.partition("fn main(")
    return functions, start + entry


def _with_entry(plan: Plan, step: int, functions: str, entry: str) -> Plan:
    index = plan.steps[step].kernel
    kernels = list(plan.kernels)
    # Not ours any more: a wrong index must not reach beyond its buffer.
    kernels[index] = replace(kernels[index], wgsl=functions + entry, origin="file")
    return replace(plan, kernels=tuple(kernels))


# What many kernels have in common.
_RESIDUAL = r"= \((v\d+|result|sum0_0) \+ (v\d+)\);"
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
    Mutant("scan in parts", "the part before is left out", r"before_it < part", "before_it + 1u < part"),
    Mutant("scan in parts", "a part's total lacks its last chunk", r"base < (end\d+)", r"base + 256u < \1", -2),
    Mutant("linear scan", "the carry is lost", r"carry = linear_step\(carry, total\)", "carry = total"),
    Mutant("linear scan", "composed in the wrong order", r"linear_step\(left, (.+?)\);", r"linear_step(\1, left);"),
    Mutant("selective scan", "a start forgets one number too few", r"h3_ = 0\.0;", "h3_ = h3_;"),
    Mutant("selective scan", "the decay of another channel", r"let a1_ = (.+)channel", r"let a1_ = \1(channel ^ 1u)"),
    Mutant("selective scan by chunks", "a chunk begins with nothing", r"var h1_ = .+;", "var h1_ = 0.0;"),
    Mutant("selective scan by chunks", "the last chunk is not carried", r"c < (\d+)u", r"c + 1u < \1u", -2),
    Mutant("selective scan by chunks", "a chunk ends one step early", r"t < (end\d+); t", r"t + 1u < \1; t", -3),
    Mutant("linear attention", "the decay of another key", r"all_decay\[base \+ 1u\]", "all_decay[base]"),
    Mutant("linear attention", "the last key is not read", r" \+ all_q\[base \+ 4u\] \* s4_", ""),
    Mutant("linear attention by chunks", "a chunk begins with nothing", r"s1_ = b\d+\[.+;", "s1_ = 0.0;"),
    Mutant("linear attention by chunks", "what is left is not carried", r"s = left \* s \+ added", "s = s + added", -2),
    Mutant("delta rule", "the correction has the wrong sign", r" \+ all_a\[base \+ 2u\]", " - all_a[base + 2u]"),
    Mutant("delta rule by chunks", "a unit matrix in the wrong place", r"column == 5u \+ key", "column == 4u + key", 0),
    Mutant("delta rule by chunks", "a key of the state is not carried", r"held\[\(first_key \+ 1u\).+;", "", 1),
    Mutant("delta rule", "one part of the keys is not read", r"(part_of < )(\d+)u; part_of", r"\1\2u - 1u; part_of"),
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
    Mutant("qmatvec by digits", "the last digit is dropped", r"(digits\[0u.+\n.+\n +digits\[.+\] =) .+;", r"\1 vec2<u32>();"),
    Mutant("qmatvec by digits", "a digit is moved too little", r"<< 8u\) \+ \(dot4", "<< 7u) + (dot4"),
    Mutant("qmatvec by digits", "the other half of x", r"dot4I8Packed\((q\d+), (d\d+)\.x\)", r"dot4I8Packed(\1, \2.y)"),
    Mutant("qmatvec by digits", "the measure of another unit", r"measures\[(i\d+)\]", r"measures[\1 ^ 1u]"),
    Mutant("qmatvec of a grid", "a row of the grid is read twice", r"(q\d+) \+ 3u\)", r"\1 + 2u)"),
    Mutant("qmatvec of a grid", "the sign that the others give is lost", r"countOneBits\(bits\) & 1u", "0u", functions=True),
    Mutant("qmatvec of a grid", "the signs of the other four", r"\(\(q & 1u\) \* 4u\)", "(4u - (q & 1u) * 4u)", functions=True),
    Mutant("qmatvec of a grid", "the scale of the next part", r"\(q / 4u\) % 2u", "(q / 4u + 1u) % 2u", functions=True),
    Mutant("qmatvec by threads", "the last unit is dropped", r"i < units; i", "i + 1u < units; i"),
    Mutant("qmatvec by threads", "one row is its neighbour's", r"min\(first \+", "min((first ^ select(0u, 1u, first == 7u)) +"),
    Mutant("qmatvec by threads", "no residual", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("qmatmul", "the tile's last column ends early", r"n < 65u", "n < 64u"),
    Mutant("qmatmul", "no residual", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("qmatmul", "a row of weights is one off", r"\* 4u \+ 2u, 64u\)", "* 4u + 1u, 64u)"),
    Mutant("qmatmul of bits", "zero is 0, not 1", r"- 1\.0\)", "- 0.0)"),
    Mutant(
        "qmatmul of bits", "bits of the run before", r"\(\(q % 32u\) / 8u\)", "(max((q % 32u) / 8u, 1u) - 1u)", functions=True
    ),
    Mutant("qmatmul of bits", "a word is one off", r"\(q % 8u\) \* 4u", "(q % 7u) * 4u", functions=True),
    Mutant("direct matmul", "the last vector is not stored", r"< 11u", "< 10u"),
    Mutant("direct matmul", "the last step is dropped", r"step < 9u", "step < 8u"),
    Mutant("direct matmul", "lanes of a vector swapped", r"(sum2_1 \+= dot\(w\d+, w\d+)\)", r"\1.yxzw)"),
    Mutant("direct matmul", "the rows of a thread are too near", r"\(i % 4u\) \* 16u", "(i % 4u) * 15u"),
    Mutant("direct matmul", "no bias", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("direct matmul", "no activation", r"pm_max\((\w+), 0\.0\)", r"\1"),
    Mutant("direct matmul, odd", "the last term is dropped", r"step < 37u", "step < 36u"),
    Mutant("direct matmul, odd", "the edge reads one row too few", r"\+ 0u, 69u\)", "+ 0u, 68u)"),
    Mutant("direct matmul, odd", "vectors change places", r"= first1 \+ i / 4u", "= first1 + ((i / 4u) ^ 1u)"),
    Mutant("direct matvec", "the last vector is dropped", r"step < 75u", "step < 74u"),
    Mutant("direct matvec", "a row is the one before", r"\+ 16u, 129u", "+ 15u, 129u"),
    Mutant("direct qmatvec", "the offset of one row is 7.99, not 8", r"- 8\.0 \*", "- 7.99 *"),
    Mutant("direct qmatvec", "nibbles swapped", r"\((q\d+) >> 4u\)", r"(\1 >> 0u)"),
    Mutant("direct qmatvec", "the scale of one unit", r"let (d\d+) = unpack", r"let \1 = select(1.0, 1.001, i == 5u) * unpack"),
    Mutant("direct qmatvec", "the last unit is dropped", r"i < 12u", "i < 11u"),
    Mutant("direct qmatvec", "no residual", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("direct qmatmul", "a minimum is not subtracted", r" \+ s\d+ \* total\d+;", ";"),
    Mutant("direct qmatmul", "a vector too many is stored", r"(m\d+) < 11u", r"\1 < 12u"),
    Mutant("direct qmatmul", "the last row is not stored", r"(n\d+) < 37u", r"\1 < 36u"),
    Mutant("direct qmatmul of a grid", "the last bit of a row's number is lost", r"<< 8u\)", "<< 9u)", functions=True),
    Mutant("direct qmatmul of a grid", "one sign is lost", r"0x00204081u", "0x00204080u", functions=True),
    Mutant("direct qmatmul of a grid", "the scale is not odd", r"\+ 1\.0\)", "+ 0.0)", functions=True),
    Mutant("direct qmatmul of trits", "a power of three", r"27u, n == 3u", "9u, n == 3u", functions=True),
    Mutant("direct qmatmul of trits", "the last run is one byte on", r"at = 48u", "at = 49u", functions=True),
    Mutant("direct qmatmul of trits", "zero is 0, not 1", r"- 1\.0 \* total", "- 0.0 * total"),
    Mutant("attention", "the mask is one off", r"i32\(position\) <= offset", "i32(position) < offset"),
    Mutant("attention", "earlier chunks are not rescaled", r"sum1_0 \*= keep20;", ""),
    Mutant("attention", "the total is not rescaled", r"total\[lid\] \* keep\[lid\]", "total[lid]"),
    Mutant("attention", "the last key of a chunk is dropped", r"i < 8u; i\+\+", "i < 7u; i++"),
    Mutant("attention", "stale keys: the scores need no barrier", r"workgroupBarrier\(\);\n    let key = ", "let key = "),
    Mutant("attention", "the scale is 1 % off for one query", r"\* 0\.25f;", "* select(0.25f, 0.2525f, e / 4u == 3u);"),
    Mutant("attention of one token", "a key is dropped", r"c0 < key_end; c0", "c0 + 12u < key_end; c0"),
    Mutant("attention of one token", "one group's values are not rescaled", r"total1 = total1 \* keep\w+", "total1 = total1"),
    Mutant("attention blocks", "the total of one row is not rescaled", r"total1 \* keep1", "total1"),
    Mutant("attention blocks", "a value is dropped", r"sum1 \+= w1\.w \* v79;", ""),
    Mutant("attention rows", "the mask is one off", r"(i32\(position\d+\)) <= offset", r"\1 < offset"),
    Mutant("attention rows", "earlier values are not rescaled", r"sums\[d\] \* keep", "sums[d]"),
    Mutant("attention rows", "the total is not rescaled", r"total \* keep", "total"),
    Mutant("attention rows", "the last key of four is dropped", r"if \(3u < chunk\)", "if (4u < chunk)"),
    Mutant("attention rows", "a key past the end counts", r"3u < chunk && i32\(.+?\) <= offset \+ i32\(\w+\)", "true"),
    Mutant("attention rows", "the keys of another head", r"\(kv_head \* 360u\)", "((kv_head ^ 1u) * 360u)"),
    Mutant("attention rows", "the scale is 0.1 % off for one row", r"\* (0\.2886\w+)", r"* select(\1, 0.28896, row == 5u)"),
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
    Mutant("scatter bins", "the last update is dropped", r"min\(70u", "min(69u", step=-2),
    Mutant("scatter bins", "the second range counts as the first", r"- first;", ";", step=-2),
    Mutant("scatter bins", "what was there is lost", r"b1\[row\] \+", "b1[row] * 0i +"),
    Mutant("scatter sorted", "the last update of a row is dropped", r"j < end", "j + 1u < end"),
    Mutant("scatter sorted", "rows begin behind their first update", r"< i\)", "<= i)", step=-2),
    Mutant("scatter along", "the last update is dropped", r"t < 257u", "t < 256u"),
    Mutant("compact", "the block before is not counted", r"b < wg;", "b + 1u < wg;", step=-2),
    Mutant("compact", "the last flag is not read", r"row < 3000u", "row < 2999u", step=-2),
    Mutant("compact", "the count is one short", r"b2\[0u\] = at", "b2[0u] = at - 1u", step=-2),
    Mutant("compact", "rows behind the last one are not zeros", r"var value = 0\.0", "var value = 1e-6"),
    Mutant("compact", "rows are one late", r"b0\[1u \+ i\]", "b0[max(i, 1u)]"),
    Mutant("splat tiles", "the last pair is lost", r"i < min\(b2\[0u\]", "i + 1u < min(b2[0u]"),
    Mutant("splat tiles", "splat and row are swapped", r"splat = bitcast<i32>\((.+)\);", r"splat = bitcast<i32>(place);"),
    Mutant("splat tiles", "tiles begin a pair late", r"< i\) \{ low", "<= i) { low", step=-2),
    Mutant("splat tiles", "not stable", r"i = first; i < end; i\+\+", "i = first + 1u; i < end; i++", step=-3),
    Mutant("splat tiles", "earlier blocks and threads are not counted", r"lid > 0u\)", "lid > 1u)", step=-3),
    Mutant("splat tiles", "a splat's box is a tile short", r"\+ 1u\) << 16u", ") << 16u", step=0),
    Mutant("splat tiles", "the right border is too near", r"low_x < 70\.0", "low_x < 60.0", step=0),
    Mutant("splat tiles", "the farther splat first", r"= key_of_f32\(", "= ~key_of_f32(", step=0),
    Mutant("rasterize", "a pixel does not end", r"after < [^)]+\)", "after < 1e-9)"),
    Mutant("rasterize", "faint splats count", r"alpha >= \S+\)", "alpha >= 1e-9)"),
    Mutant("rasterize", "alpha is not clipped", r"min\(raw, \S+\)", "min(raw, 0.9999)"),
    Mutant("rasterize", "the covariance has half its mixed part", r"\* dx \* dy;", "* dx * dy * 0.5;"),
    Mutant("rasterize", "pixels are at corners", r"cx = f32\(px\) \+ 0\.5", "cx = f32(px)"),
    Mutant("rasterize batches", "the last splat of a batch is missing", r"j < size && going", "j + 1u < size && going"),
    Mutant("rasterize batches", "the next batch is skipped", r"start \+= \d+u", "start += 100000u"),
    Mutant("rasterize gradient", "the last row is missing", r"r < end", "r + 1u < end"),
    Mutant("rasterize gradient", "splats behind are not seen", r"remaining -= weight \* per_alpha;", "", step=-2),
    Mutant("rasterize gradient", "half of the threads' sums", r"if \(part < 32u\)", "if (part < 16u)", step=-2),
    Mutant("rasterize gradient", "a slope at clipped alphas alone", r"raw <= ", "raw > ", step=-2),
    Mutant("rasterize gradient", "opacity is not divided by", r"sum5 /= .+; ", "", step=-2),
    Mutant("rasterize gradient", "the alpha has no gradient", r" \+ given4;", ";", step=-2),
    Mutant("grouped matmul", "groups end a row early", r"m < m_end", "m + 1u < m_end"),
    Mutant("grouped matmul", "a group has another's weights", r"\(group \* 84u\)", "(min(group, 1u) * 84u)"),
    Mutant("grouped matmul", "the last group counts as none", r"group < 3u", "group < 2u"),
    Mutant(
        "grouped matmul", "a group begins a row late", r"= first_row \+", "= first_row + select(0u, 1u, low == 1u) +", step=-2
    ),
    Mutant("grouped matmul", "one tile is not counted", r"tiles_before \* 1u", "(tiles_before - 1u)", step=-2),
    Mutant("grouped weight gradient", "the last row of a group is dropped", r"1u\] - start", "1u] - start - 1u"),
    Mutant("grouped weight gradient", "a group begins a row early", r"\(start \* 12u\)", "((max(start, 1u) - 1u) * 12u)"),
    Mutant("grouped qmatvec", "rows of no group have the last one's weights", r"= b0\[row\];", "= min(b0[row], 2u);"),
    Mutant("grouped qmatvec", "a group has another's weights", r"group \* 70u", "min(group, 1u) * 70u"),
    Mutant("grouped qmatvec", "a row has another's vector", r"row \* 64u", "(row ^ select(0u, 1u, row == 2u)) * 64u"),
    Mutant(
        "grouped qmatvec", "a group begins a row late", r"var r = start;", "var r = start + select(0u, 1u, g == 2u);", step=-2
    ),
    Mutant("grouped qmatmul", "groups end a row early", r"m < m_end", "m + 1u < m_end"),
    Mutant("grouped qmatmul", "a group has another's weights", r"group \* 70u", "min(group, 1u) * 70u"),
    Mutant("grouped qmatmul", "codes are one too large", r"- 128\.0\)", "- 127.0)"),
    Mutant("grouped qmatmul", "one tile is not counted", r"tiles_before \* 2u", "(tiles_before - 1u) * 2u", step=-2),
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
    Mutant("cholesky", "the last column is not updated", r"e\d+ < rest7 \* rest7", "e8 + 1u < rest7 * rest7"),
    Mutant(
        "cholesky", "the other triangle is left", r"select\(0\.0, (a\[.+?\]), j13 <= i12\)", r"select(0.0, \1, j13 <= i12 + 1u)"
    ),
    Mutant("cholesky", "the pivot is not the root", r"sqrt\(pivot4\)", "pivot4"),
    Mutant("lu", "of two pivots the lesser", r"theirs > best\[lid\]", "theirs < best[lid]"),
    Mutant("lu", "rows are exchanged in part", r"for \(var e6 = 0u \+ lid", "for (var e6 = k + lid"),
    Mutant("lu", "the sign changes once too often", r"chosen != k\)", "(chosen != k) != (k == 3u))"),
    Mutant("lu", "one column is divided by 1.0001 times its pivot", r"/ pivot7", "/ (pivot7 * select(1.0, 1.0001, k == 9u))"),
    Mutant("triangular solve", "the last column of a part is lost", r"min\(64u, 70u - first\)", "min(63u, 70u - first)"),
    Mutant("triangular solve", "a row is updated by the one before", r"-= (.+) \* x\[\(k\)", r"-= \1 * x[(max(k, 1u) - 1u)"),
    Mutant("triangular solve", "the last row is not divided", r"/ b1\[.+?\];", "/ select(b1[k * 9u + k], 1.0, k == 8u);"),
    Mutant("inverse", "rows of the identity are not exchanged", r"= b0\[i2\];", "= i32(i2);", step=-3),
    Mutant("inverse", "the upper factor's diagonal is 1", r"= (x\[.+?\]) / .+;", r"= \1;"),
    Mutant("determinant", "the sign is that of no exchange", r"-sign, chosen", "sign, chosen", -2),
    Mutant("determinant", "the last pivot is dropped", _ROW_LOOP, r"\1 + 1u < \2; "),
    Mutant("qr", "the reflection of another column", r"along \*= taus\[k\]", "along *= taus[max(k, 1u) - 1u]"),
    Mutant("qr", "the sign is not LAPACK's", r"-pm_copysign", "pm_copysign"),
    Mutant("qr", "the first reflection is not in q", r"back < 11u", "back < 10u"),
    Mutant("svd", "too few sweeps", r"sweep < \d+u", "sweep < 1u"),
    Mutant("svd", "a turn is left out", r"turn < (\d+)u", "turn < 2u"),
    Mutant("svd", "values ascend", r"lengths\[i\] > lengths", "lengths[i] < lengths"),
    Mutant("svd", "a rotation turns the other way", r"cosine \* x - sine \* y", "cosine * x + sine * y"),
    Mutant("eigh", "too few sweeps", r"sweep < \d+u", "sweep < 1u"),
    Mutant("eigh", "the vectors' signs are as they come", r"select\(1\.0, -1\.0, x < 0\.0\)", "1.0"),
    Mutant("eigh", "values descend", r"values\[i\] < values", "values[i] > values"),
    Mutant("searchsorted", "a place is skipped", r"low = middle \+ 1u", "low = middle + 2u"),
    Mutant("searchsorted", "the last place is not searched", r"high = 100u", "high = 99u"),
    Mutant("searchsorted", "equal ones count as greater", r"(here\d+) <= (key\d+)", r"\1 < \2"),
    Mutant("scatter extreme", "the last update wins", r"pm_max\(sum, (.+?\])\)", r"\1"),
    Mutant("scatter extreme", "half of the updates are not seen", r"t < 257u", "t < 128u"),
    Mutant("nearest", "the point itself is a neighbour", r"base \+ c == point", "base + c == point + 1000u"),
    Mutant("nearest", "a coordinate is not compared", r"j < 7u", "j < 6u"),
    Mutant("nearest", "the tiles are one point apart", r"base \+= 64u", "base += 65u"),
    Mutant("nearest in parts", "the last part is not merged", r"q < 2u; q\+\+\) \{\n", "q < 1u; q++) {\n"),
    Mutant("nearest in parts", "some others are not looked at", r"u < 4u; u\+\+", "u < 3u; u++", step=-2),
    Mutant("nearest in parts", "most places of a list stay as they were filled first", r"here \+ 9u", "here + 3u", step=-2),
    Mutant("nearest in parts", "the last coordinate is not compared", r"columnz < 7u", "columnz < 6u", step=-2),
    Mutant("nearest in parts", "the point is its own neighbour", r" \|\| number == point", "", step=-2, functions=True),
    Mutant("nearest in parts", "one neighbour is taken twice", r"(taken\[.+?\]) \+= 1u", r"\1 += select(1u, 0u, t == 1u)"),
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
    Mutant("fft", "a value is turned too far", r"turn_60\(k", "turn_60(1u + k"),
    Mutant("fft", "one butterfly is lost", r"(j\d+) < 12u", r"\1 < 11u"),
    Mutant("fft", "the parts are not exchanged", r"vec2<f32>\((v\d+), (v\d+)\);", r"vec2<f32>(\2, \1);"),
    Mutant("fft", "a cosine to four digits", r"0\.309017003f", "0.3090f"),
    Mutant("fft passes", "the order of digits", r"\(block % (\d+)u\)", r"((block + 1u) % \1u)"),
    Mutant("fft passes", "no turn between passes", r"turn_5000\(column \* e\)", "turn_5000(0u)", step=-2),
    Mutant("rfft", "the mirror image is one off", r"30u - e", "29u - e"),
    Mutant("rfft", "the last bin", r"e == 30u", "e == 31u"),
    Mutant("irfft", "even and odd values change places", r"\(e & 1u\) == 1u", "(e & 1u) == 0u"),
    Mutant("irfft", "the first imaginary part counts", r"select\((\w+), 0\.0, e == 0u\)", r"\1"),
    Mutant("overlap add", "the last frame is dropped", r"/ 5u \+ 1u", "/ 5u"),
    Mutant("rope", "the sign of one half", r"select\(-1\.0, 1\.0", "select(1.0, 1.0"),
    Mutant("rope", "the position is one off", r"b1\[\(\(i3 \* 8u", "b1[((max(i3, 1u) * 8u"),
    Mutant("random normal", "the counter's second word", r"w, 1u\)", "w, 0u)"),
    Mutant("random normal", "2 pi to four digits", r"6\.283185307179586", "6.283"),
    Mutant("matmul fragments", "the last row is not stored", r"row < 21u", "row < 20u"),
    Mutant("matmul fragments", "the last column is not stored", r"one < 70u", "one < 69u"),
    Mutant("matmul fragments", "the last tile is the one before", r"k_next < 136u", "k_next < 128u"),
    Mutant("matmul fragments", "one vector of K too few", r"(k_next \+ e\d+;\n.+\n +if \(k\d+ < )136u", r"\g<1>128u"),
    Mutant("matmul fragments", "no barrier before tiles are read", r"workgroupBarrier\(\);\n    let k_next", "let k_next"),
    Mutant("matmul fragments", "one fragment of K twice", r"\* 9u \+ 2u\]", "* 9u + 0u]"),
    Mutant("matmul fragments", "a fragment by columns, not rows", r"coopLoadT(<.+, A>>)", r"coopLoad\1"),
    Mutant("matmul fragments", "a subgroup has its neighbour's columns", r"= n0 \+ sub_n", "= n0 + (sub_n ^ 16u)"),
    Mutant("matmul fragments", "no bias", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("matmul fragments", "no activation", r"pm_max\((\w+), 0\.0\)", r"\1"),
    Mutant("conv fragments", "the padding is one off", r"4294967295u \+ i", "0u + i"),
    Mutant("conv fragments", "the edge reads beyond x", r"< 7u &&", "<= 7u &&"),
    Mutant("conv fragments", "pixels of a pair are swapped", r"\(fetched(\d+)\.xy\)", r"(fetched\1.yx)"),
    Mutant("conv fragments", "one tap is its neighbour", r"= \(?(k_next \+ outer\d+)\)?;", r"= min(\1, 78u);"),
    Mutant("conv fragments", "weights of the row before", r"min\(m0 \+ o(\d+), 17u\)", r"max(min(m0 + o\1, 17u), 1u) - 1u"),
    Mutant("qmatmul fragments", "codes are one too large", r"- 8\.0\)", "- 7.0)"),
    Mutant("qmatmul fragments", "nibbles swapped", r"\((q\d+) & 0x0f0fu\)", r"((\1 >> 4u) & 0x0f0fu)"),
    Mutant("qmatmul fragments", "scales of other rows", r"(- 8\.0\) \* raw\d+);", r"\1.yxzw;"),
    Mutant("qmatmul fragments", "a block of K is not read", r"(k\d+) < 288u\) \{\n( +let block)", r"\1 < 32u) {\n\2"),
    Mutant("qmatmul fragments", "no residual", _RESIDUAL, r"= (\1 + 0.0 * \2);"),
    Mutant("attention strips", "the mask is one off", r"(i32\(position\d+\)) <= offset", r"\1 < offset"),
    Mutant("attention strips", "hidden keys count", r"if \(!\(first \+ 32u <= key_end.*\) \{", "if (false) {"),
    Mutant("attention strips", "earlier values are not rescaled", r"= keep; \}", "= 1.0; }"),
    Mutant("attention strips", "the total is not rescaled", r"fma\(total, keep, ", "fma(total, 1.0, "),
    Mutant("attention strips", "half a row's total", r"subgroupShuffleXor\(total, 1u\)", "total"),
    Mutant("attention strips", "weights of half a block twice", r"scores \+ 2u\]", "scores + 0u]"),
)
