"""attention_gradient: the gradients of queries, then of keys and values, from scores that exist a block at a time.

The first kernel keeps some query rows in workgroup memory and streams their keys. It needs no row statistics beforehand: with
weights w = e^(s - top), where top is the greatest score so far, it sums w, w·dp, w·k and w·dp·k, and at the end
dq = scale·(Σ w·dp·k - δ·Σ w·k) / Σ w with δ = Σ w·dp / Σ w. It leaves top, 1/Σ w and δ of each row for the second kernel,
which keeps some keys and values and streams the query rows that see them. No two workgroups add to one result, so results
are the same in every run.
"""

from __future__ import annotations

from pumice.core.dims import Dim
from pumice.core.dtypes import f32
from pumice.ir.types import TensorType
from pumice.kernels.builder import KernelBuilder, Lowered
from pumice.kernels.context import Group, LowerContext
from pumice.kernels.pull import Puller
from pumice.kernels.routines.attention_gradient_tiles import STATISTICS, GradientKernel, decide
from pumice.kernels.routines.attention_parts import FAR, HIDDEN, LOWEST, static_size

# The results, in their order.
_DQ, _DK, _DV = range(3)


class _OfQueries(GradientKernel):
    """Keeps scaled query rows and their dy; streams keys and values."""

    def emit(self) -> Dim:
        """The whole body; gives the number of workgroups."""
        kb, c = self.kb, self.c
        self.declare()
        kb.shared("highest", "f32", c.held * self.quarter)
        for name in ("keep", "share", "delta"):
            kb.shared(name, "f32", c.held)
        groups = self.place(self.rows, "row0")
        kb.emit(f"let last_row = {kb.dim(self.rows - 1)};")
        self.fill("held_a", self.q, self.query_row(self.q), "row0", "last_row", self.scale)
        self.fill("held_b", self.dy, self.query_row(self.dy), "row0", "last_row")
        for i in range(c.tile):
            kb.emit(f"var top_{i} = {HIDDEN};")
            kb.emit(f"var total_{i} = 0.0;")
            kb.emit(f"var mixed_{i} = 0.0;")
        self.declare_sums("a", self.depth)
        self.declare_sums("b", self.depth)
        begin, end = self._bounds()
        kb.emit(f"let key_begin = {begin};")
        kb.emit(f"let key_end = {end};")
        kb.open(f"for (var c0 = key_begin; c0 < key_end; c0 += {c.passing}u)")
        kb.emit(f"let chunk = min({c.passing}u, key_end - c0);")
        self.fill("passing_a", self.k, self.key_row(self.k), "c0", "key_end - 1u")
        self.fill("passing_b", self.v, self.key_row(self.v), "c0", "key_end - 1u")
        kb.emit("workgroupBarrier();")
        self.dots()
        self._weights()
        kb.emit("workgroupBarrier();")
        for name in ("a", "b"):
            self.shrink_sums(name, self.depth, "keep")
        self.add_weighted(("a", "a"), ("b", "a"), depth=self.depth)
        kb.emit("workgroupBarrier();")
        kb.close()
        self._statistics()

        def address(row: str) -> str:
            head, query = self.head_and_query(row)
            return self.address(self.heads, self.sq, self.depth, head, query)

        def of(r: int, j: int) -> str:
            at = f"sum_row + {r}u"
            return f"{self.scale} * share[{at}] * (sum_a{r}_{j} - delta[{at}] * sum_b{r}_{j})"

        self.store(_DQ, self.depth, self.rows, address, of)
        return groups

    def _bounds(self) -> tuple[str, str]:
        """The keys that some row of the block may see."""
        kb, group = self.kb, self.kb.dim(self.group)
        end, begin = "visible", "0u"
        if self.attrs["causal"]:
            kb.emit(f"let last_query = i32(min(row0 + {self.c.held - 1}u, last_row) / {group});")
            end = f"min({end}, offset + last_query + 1i)"
        if self.attrs["window"] is not None:
            begin = f"u32(max(offset + i32(row0 / {group}) - {self.attrs['window'] - 1}i, 0i))"
        return begin, f"u32(max({end}, 0i))"

    def _weights(self) -> None:
        """Weights relative to the greatest score so far: `a` with dp, `b` without; older sums are rescaled by `keep`."""
        kb, c = self.kb, self.c
        self.open_busy()
        positions = self.passing("key_end - 1u")
        for i in range(c.tile):
            row = kb.let(f"min(row0 + sy + {i}u, last_row)", "row")
            shown = self.finish_scores(i, [row] * 4, positions)
            kb.emit(f"s_{i} = select(vec4<f32>({HIDDEN}), s_{i}, {shown});")
            kb.emit(f"highest[(sy + {i}u) * {self.quarter}u + sx] = max(max(s_{i}.x, s_{i}.y), max(s_{i}.z, s_{i}.w));")
        kb.close()
        kb.emit("workgroupBarrier();")
        self.open_busy()
        for i in range(c.tile):
            kb.emit(f"let old_{i} = top_{i};")
            kb.open(f"for (var k = 0u; k < {self.turns(self.quarter)}; k++)")
            kb.emit(f"top_{i} = max(top_{i}, highest[(sy + {i}u) * {self.quarter}u + k]);")
            kb.close()
            kb.emit(f"let keep_{i} = select(0.0, exp(max(old_{i} - top_{i}, {FAR})), old_{i} >= {LOWEST});")
            kb.emit(
                f"let w_{i} = select(vec4<f32>(), exp(max(s_{i} - top_{i}, vec4<f32>({FAR}))), s_{i} >= vec4<f32>({LOWEST}));"
            )
            kb.emit(f"let wdp_{i} = w_{i} * dp_{i};")
            kb.emit(f"total_{i} = total_{i} * keep_{i} + dot(w_{i}, vec4<f32>(1.0));")
            kb.emit(f"mixed_{i} = mixed_{i} * keep_{i} + dot(wdp_{i}, vec4<f32>(1.0));")
            self.store_weights("a", i, f"wdp_{i}{self.softcap_slope(i)}")
            self.store_weights("b", i, f"w_{i}{self.softcap_slope(i)}")
            kb.emit(f"if (sx == 0u) {{ keep[sy + {i}u] = keep_{i}; }}")
        kb.close()

    def _statistics(self) -> None:
        """Sums over the threads of a row; what the second kernel needs is stored."""
        kb, c = self.kb, self.c
        out = kb.write(self.statistics, f32)
        kb.shared("mixed", "f32", c.held * self.quarter)
        self.open_busy()
        for i in range(c.tile):
            at = f"(sy + {i}u) * {self.quarter}u + sx"
            kb.emit(f"highest[{at}] = total_{i};")
            kb.emit(f"mixed[{at}] = mixed_{i};")
            kb.emit(f"if (sx == 0u) {{ keep[sy + {i}u] = top_{i}; }}")
        kb.close()
        kb.emit("workgroupBarrier();")
        kb.open(f"for (var r = lid; r < {c.held}u; r += {c.threads}u)")
        kb.emit("var total = 0.0;")
        kb.emit("var sum = 0.0;")
        kb.open(f"for (var k = 0u; k < {self.turns(self.quarter)}; k++)")
        kb.emit(f"total += highest[r * {self.quarter}u + k];")
        kb.emit(f"sum += mixed[r * {self.quarter}u + k];")
        kb.close()
        kb.emit("share[r] = select(0.0, 1.0 / total, total > 0.0);")
        kb.emit("delta[r] = sum * share[r];")
        kb.open(f"if (row0 + r < {kb.dim(self.rows)})")
        kb.emit(f"let at = ((batch * {kb.dim(self.kv_heads)} + kv_head) * {kb.dim(self.rows)} + row0 + r) * {STATISTICS}u;")
        for i, name in enumerate(("keep", "share", "delta")):
            kb.emit(out.store(f"at + {i}u", f"{name}[r]"))
        kb.close()
        kb.close()
        kb.emit("workgroupBarrier();")


class _OfKeys(GradientKernel):
    """Keeps keys and values; streams scaled query rows and their dy."""

    def emit(self) -> Dim:
        """The whole body; gives the number of workgroups."""
        kb, c = self.kb, self.c
        self.declare()
        kb.shared("rows", "f32", STATISTICS * c.passing)
        groups = self.place(self.sk, "row0")
        kb.emit(f"let last_key = {kb.dim(self.sk - 1)};")
        self.fill("held_a", self.k, self.key_row(self.k), "row0", "last_key")
        self.fill("held_b", self.v, self.key_row(self.v), "row0", "last_key")
        for _, name, depth in self._sums():
            self.declare_sums(name, depth)
        begin, end = self._bounds()
        kb.emit(f"let row_begin = {begin};")
        kb.emit(f"let row_end = select(0u, {end}, i32(row0) < visible);")
        kb.open(f"for (var c0 = row_begin; c0 < row_end; c0 += {c.passing}u)")
        kb.emit(f"let chunk = min({c.passing}u, row_end - c0);")
        self.fill("passing_a", self.q, self.query_row(self.q), "c0", "row_end - 1u", self.scale)
        self.fill("passing_b", self.dy, self.query_row(self.dy), "c0", "row_end - 1u")
        self._load_statistics()
        kb.emit("workgroupBarrier();")
        self.dots()
        self._weights()
        kb.emit("workgroupBarrier();")
        for _, name, depth in self._sums():
            self.add_weighted((name, name), depth=depth)
        kb.emit("workgroupBarrier();")
        kb.close()
        for result, name, depth in self._sums():
            self._store(result, name, depth)
        return groups

    def _sums(self) -> list[tuple[int, str, int]]:
        """The gradients that this kernel sums up: which result, the name of its sums, the depth of its rows."""
        both = ((_DK, "a", self.depth), (_DV, "b", self.depth_v))
        return [s for s in both if s[0] in self.results]

    def _store(self, result: int, name: str, depth: int) -> None:
        def address(row: str) -> str:
            return self.address(self.kv_heads, self.sk, depth, "kv_head", row)

        self.store(result, depth, self.sk, address, lambda r, j: f"sum_{name}{r}_{j}")

    def _bounds(self) -> tuple[str, str]:
        """The query rows that may see some key of the block."""
        kb, group = self.kb, self.kb.dim(self.group)
        begin, end = "0u", kb.dim(self.rows)
        if self.attrs["causal"]:
            begin = f"u32(max(i32(row0) - offset, 0i)) * {group}"
        if self.attrs["window"] is not None:
            last = f"i32(min(row0 + {self.c.held - 1}u, last_key))"
            end = f"min({end}, u32(max({last} - offset + {self.attrs['window']}i, 0i)) * {group})"
        return begin, end

    def _load_statistics(self) -> None:
        kb, c = self.kb, self.c
        stored = kb.read(self.statistics, f32)
        kb.open(f"for (var e = lid; e < {STATISTICS * c.passing}u; e += {c.threads}u)")
        row = kb.let(f"min(c0 + e / {STATISTICS}u, row_end - 1u)", "row")
        at = f"((batch * {kb.dim(self.kv_heads)} + kv_head) * {kb.dim(self.rows)} + {row}) * {STATISTICS}u + e % {STATISTICS}u"
        kb.emit(f"rows[e] = {stored.load(at)};")
        kb.close()

    def _weights(self) -> None:
        """Probabilities in `b`, gradients of the scores in `a`."""
        kb, c = self.kb, self.c
        self.open_busy()
        top, share, delta = (
            kb.let(f"vec4<f32>({', '.join(f'rows[(sx * 4u + {j}u) * {STATISTICS}u + {k}u]' for j in range(4))})", "of_row")
            for k in range(STATISTICS)
        )
        rows = self.passing("row_end - 1u")
        for i in range(c.tile):
            position = kb.let(f"row0 + sy + {i}u", "position")
            shown = self.finish_scores(i, rows, [position] * 4)
            kb.emit(f"let p_{i} = select(vec4<f32>(), exp(max(s_{i} - {top}, vec4<f32>({FAR}))) * {share}, {shown});")
            # Masked keys may hold NaN: a probability of 0 would not be enough.
            self.store_weights("a", i, f"select(vec4<f32>(), p_{i} * (dp_{i} - {delta}){self.softcap_slope(i)}, {shown})")
            self.store_weights("b", i, f"p_{i}")
        kb.close()


def lower_attention_gradient(ctx: LowerContext, group: Group) -> list[Lowered]:
    """The kernel of the queries, which the other needs the statistics of, and that of keys and values if they are wanted.

    Where a device has too few bindings for both, keys and values have a kernel each.
    """
    assert group.anchor is not None
    node = ctx.graph.nodes[group.anchor]
    heads, sequence = (2, 1) if node.attr["layout"] == "bshd" else (1, 2)
    q, k, v = (ctx.type(node.operands[name]).shape for name in "qkv")
    blocks = decide(ctx.caps, static_size(q[3]), static_size(v[3]))
    assert blocks is not None, "a pass has written it in other ops"
    statistics = ctx.temp(TensorType(f32, (q[0], k[heads], q[heads] // k[heads] * q[sequence], STATISTICS)))
    wanted = ctx.wanted(group)
    of_keys = [{_DK, _DV} & wanted.keys()]
    if len(node.args) + 1 + len(of_keys[0]) > ctx.caps.max_storage_buffers:
        of_keys = [{result} for result in sorted(of_keys[0])]
    kernels: list[tuple[type[_OfQueries | _OfKeys], str, set[int]]] = [(_OfQueries, "queries", {_DQ} & wanted.keys())]
    kernels += [(_OfKeys, "keys", results) for results in of_keys if results]
    out = []
    for kind, name, results in kernels:
        kb = KernelBuilder(ctx.caps, workgroup=blocks.threads)
        groups = kind(Puller(ctx, group, kb), node, blocks, statistics, results).emit()
        out.append(kb.finish(groups=groups, label=f"{ctx.label(group)} {name}", variant=blocks.name))
    return out
