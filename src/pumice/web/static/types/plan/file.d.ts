import { type Expr } from "../core/dims.js";
declare const FEATURES: readonly ["f16", "subgroups"];
declare const LIMITS: readonly ["max_storage_buffers", "max_binding_bytes", "max_buffer_bytes", "max_uniform_bytes", "max_invocations", "max_workgroup_x", "workgroup_memory"];
export type Feature = (typeof FEATURES)[number];
export type LimitName = (typeof LIMITS)[number];
export type BufferKind = "input" | "param" | "constant" | "state" | "arena";
/** A size: a number, or the row of `exprs` that it is the value of. */
export type Dim = number | {
    e: number;
};
export interface Part {
    buffer: number;
    offset: number;
    nbytes: number;
}
export interface PlanValue {
    id: number;
    dtype: string;
    shape: Dim[];
    parts: Part[];
}
export interface PlanKernel {
    name: string;
    /** WGSL without `enable` lines. */
    text: string;
    /** For each storage binding: r read, w written in full, u read and written. */
    access: string;
    words: number;
    workgroup: number;
    shared: number;
    features: Feature[];
}
/** A number of workgroups that a word in memory says when the step is due, at most `most`. */
export interface DeviceCount {
    value: number;
    word: number;
    most: Dim;
}
export interface PlanStep {
    label: string;
    kernel: number;
    bindings: {
        value: number;
        part: number;
    }[];
    access: string;
    uniforms: number | null;
    groups: Dim | DeviceCount;
    /** The value that it computes, and the nodes of the graph that it stands for. */
    root: number;
    nodes: number[];
}
export interface PlanRegime {
    bounds: {
        dim: Dim;
        most: number;
    }[];
    /** Where everything is in this regime, sources too. */
    values: Map<number, PlanValue>;
    steps: PlanStep[];
    copies: {
        to: number;
        value: number;
    }[];
    reason: string;
}
export type Needs = Record<LimitName | "storage_alignment" | "workgroups", number> & Record<Feature, boolean> & {
    /** The size of all subgroups, where kernels count on it. */
    subgroup_size?: number;
};
export interface Named {
    name: string;
    value: number;
}
/** A plan file that holds together, as far as that can be seen without its graph. */
export interface PlanFile {
    sha256: string;
    symbols: {
        name: string;
        max: number;
    }[];
    exprs: Expr[];
    infer: {
        symbol: string;
        input: string;
        axis: number;
        slope: Dim;
        rest: Dim;
    }[];
    requirements: {
        small: Dim;
        large: Dim;
        unlessEmpty: Dim;
        text: string;
    }[];
    indexInputs: {
        input: string;
        size: Dim;
        op: string;
    }[];
    inputs: Named[];
    params: (Named & {
        stored: number[];
    })[];
    states: (Named & {
        init: Uint8Array | null;
    })[];
    constants: {
        value: number;
        data: Uint8Array;
    }[];
    outputs: Named[];
    captures: Named[];
    tree: string;
    buffers: {
        kind: BufferKind;
        nbytes: number;
        name: string;
    }[];
    /** Sources: they are in the same place in all regimes. */
    values: Map<number, PlanValue>;
    kernels: PlanKernel[];
    uniforms: Dim[][];
    regimes: PlanRegime[];
    needs: Needs;
    /** The states and params that a run changes. */
    updated: Set<number>;
}
/** The plan in a file's bytes; a FormatError says what is wrong and where, a PlanError that it is for the host. */
export declare function readPlan(bytes: Uint8Array): Promise<PlanFile>;
export {};
