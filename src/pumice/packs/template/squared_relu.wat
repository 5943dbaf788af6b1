;; scale * max(x, 0)^2, element by element.
;;
;; kernel_forward gets the address of ten words: offset and size of input A, input B, output, scratch and params.
;; The params are those of kernels.json in their order: scale (f32), num_elements (u32).
;; It returns 0, or 1 for a wrong input, 2 for a wrong output, 3 for wrong params.
(module
  (memory (export "memory") 1)
  (func (export "kernel_init") (param $params i32) (param $size i32) (result i32) (i32.const 0))
  (func (export "kernel_info") (param $info i32) (result i32) (i32.const 0))
  (func (export "kernel_cleanup") (result i32) (i32.const 0))

  (func (export "kernel_forward") (param $d i32) (result i32)
    (local $x i32) (local $out i32) (local $params i32) (local $left i32) (local $scale f32) (local $v f32)
    (local.set $x (i32.load offset=0 (local.get $d)))
    (local.set $out (i32.load offset=16 (local.get $d)))
    (local.set $params (i32.load offset=32 (local.get $d)))
    (if (i32.ne (i32.load offset=36 (local.get $d)) (i32.const 8)) (then (return (i32.const 3))))
    (local.set $scale (f32.load offset=0 (local.get $params)))
    (local.set $left (i32.load offset=4 (local.get $params)))
    ;; Four bytes an element, in and out.
    (if (i32.ne (i32.load offset=4 (local.get $d)) (i32.shl (local.get $left) (i32.const 2))) (then (return (i32.const 1))))
    (if (i32.ne (i32.load offset=20 (local.get $d)) (i32.load offset=4 (local.get $d))) (then (return (i32.const 2))))
    (block $done
      (loop $next
        (br_if $done (i32.eqz (local.get $left)))
        (local.set $v (f32.max (f32.load (local.get $x)) (f32.const 0)))
        (f32.store (local.get $out) (f32.mul (local.get $scale) (f32.mul (local.get $v) (local.get $v))))
        (local.set $x (i32.add (local.get $x) (i32.const 4)))
        (local.set $out (i32.add (local.get $out) (i32.const 4)))
        (local.set $left (i32.sub (local.get $left) (i32.const 1)))
        (br $next)))
    (i32.const 0)))
