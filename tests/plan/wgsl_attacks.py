"""Kernels made to crash, hang or fill the memory of a shader compiler, by what they do."""

from __future__ import annotations

_HEAD = "@group(0) @binding(0) var<storage, read_write> out: array<u32>;\n"
_MAIN = "@compute @workgroup_size(1) fn main() "


def _main(body: str, before: str = "") -> str:
    return f"{_HEAD}{before}{_MAIN}{{ {body} }}\n"


def _chain(count: int) -> str:
    """Functions each of which calls the next one twice."""
    calls = "".join(f"fn f{k}(x: u32) -> u32 {{ return f{k + 1}(x) + f{k + 1}(x + 1u); }}\n" for k in range(count))
    return calls + f"fn f{count}(x: u32) -> u32 {{ return x; }}\n"


def _structs(count: int) -> str:
    """Structs each of which holds the next one sixteen times, the largest first."""
    return (
        "".join(f"struct S{k} {{ a: array<S{k + 1}, 16> }}\n" for k in range(count))
        + f"struct S{count} {{ a: array<u32, 64> }}\n"
    )


# Each ends a comment of WGSL.
_LINE_BREAKS = {"line feed": "\n", "tab": "\v", "form feed": "\f", "return": "\r", "next line": "\x85"}
_LINE_BREAKS |= {"line separator": "\u2028", "paragraph": "\u2029"}

ATTACKS = {
    **{
        f"{name} after a comment": _main(f"// {end} var a: array<u32, 2000000>; out[1] = a[0];\n")
        for name, end in _LINE_BREAKS.items()
    },
    "function array": _main("var a: array<u32, 2000000>; a[out[0]] = 1u; out[1] = a[out[2]];"),
    "inferred array": _main("var a = array<u32, 2000000>(); a[out[0]] = 1u; out[1] = a[out[2]];"),
    "array of a constant": _main("var a: array<u32, N>; out[1] = a[out[2]];", "const N = 2000000;\n"),
    "array of an expression": _main("var a: array<u32, N * 1000>; out[1] = a[out[2]];", "const N = 2000;\n"),
    "shadowed constant": _main("const N = 2000000; var a: array<u32, N>; out[1] = a[out[2]];", "const N = 2;\n"),
    "many arrays": _main("".join(f"var a{k}: array<u32, 2000>; " for k in range(20)) + "out[1] = a0[out[2]];"),
    "private array": _main("out[1] = a[out[2]];", "var<private> a: array<u32, 2000000>;\n"),
    "workgroup array": _main("out[1] = a[out[2]];", "var<workgroup> a: array<u32, 2000000>;\n"),
    "constant array": _main("out[1] = a[0];", "const a = array<u32, 16000>();\nconst b = array<array<u32, 16000>, 99>();\n"),
    "nested arrays": _main("var a: array<array<array<u32, 200>, 200>, 200>; out[1] = a[0][0][out[2]];"),
    "aliased array": _main("var a: A; out[1] = a[0][out[2]];", "alias B = array<u32, 2000>;\nalias A = array<B, 2000>;\n"),
    "nested structs": _main("var a: S0; out[1] = a.a[0].a[0].a[0].a[0];", _structs(4)),
    "loaded array": _main("let a = big; out[1] = a[0];", "@group(0) @binding(1) var<storage, read> big: array<u32, 2000000>;\n"),
    "deep types": _main("out[1] = 1u;", f"var<private> a: {'array<' * 50}u32{', 1>' * 50};\n"),
    "deep brackets": _main(f"out[0] = {'(' * 60000}1u{')' * 60000};"),
    "deep blocks": _main("{" * 60000 + "}" * 60000),
    "deep comments": _main("/*" * 60000 + "*/" * 60000),
    "unary operators": _main(f"out[0] = {'~' * 60000}1u;"),
    "references": _main(f"var a = 1u; out[0] = {'*&' * 30000}a;"),
    "long sum": _main(f"out[0] = {'out[1] + ' * 10000}1u;"),
    "long chain of members": _main(f"out[0] = out{'.x' * 30000};"),
    "else if": _main("if out[0] == 0u { }" + " else if out[0] == 1u { }" * 5000),
    "huge switch": _main(
        "switch out[0] { " + "".join(f"case {k}: {{ out[1] = {k}u; }} " for k in range(9000)) + "default: { } }"
    ),
    "recursion": _main("out[0] = f(1u);", "fn f(x: u32) -> u32 { return g(x); }\nfn g(x: u32) -> u32 { return f(x); }\n"),
    "doubled calls": _main("out[0] = f0(1u);", _chain(40)),
    "many functions": _main("out[0] = 1u;", "".join(f"fn f{k}() {{ }}\n" for k in range(5000))),
    "long text": _main("out[0] = 1u;", "// " + "x" * (1 << 20) + "\n"),
    "long name": _main("out[0] = 1u;", f"const {'x' * 5000} = 1;\n"),
    "long number": _main(f"out[0] = {'1' * 5000}u;"),
    "override": _main("out[1] = a[0];", "override n: u32 = 2000000u;\nvar<workgroup> a: array<u32, n>;\n"),
    "open bracket": _main("out[0] = (1u;"),
    "open comment": _main("/* out[0] = 1u;"),
    "no WGSL": "\x00\x01\x02",
}
