#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Runs ONNX models in ONNX Runtime, and compares their outputs with those that weft computed.

usage: check_onnx.py PROGRAM [NAME...]      # PROGRAM, made of onnx_*.cpp, writes the cases; all without NAMEs

Needs onnx, onnxruntime and numpy; exit code 77 without them. Cases for whose operators and types ONNX Runtime
has no kernel are listed at the end, and are no failures: `onnx.checker` accepts them.
"""
import json
import pathlib
import subprocess
import sys
import tempfile

try:
    import ml_dtypes
    import numpy as np
    import onnx
    import onnxruntime
except ImportError as missing:
    print(f"skipped: {missing}")
    sys.exit(77)

TYPES = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "I64": np.int64,
         "I32": np.int32, "U8": np.uint8, "BOOL": np.bool_}
BFLOAT16 = onnx.TensorProto.BFLOAT16


def read_tensors(path):
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    metadata = header.pop("__metadata__")
    tensors = {}
    for name, t in header.items():
        begin, end = (8 + size + o for o in t["data_offsets"])
        tensors[name] = np.frombuffer(data[begin:end], TYPES[t["dtype"]]).reshape(t["shape"])
    return tensors, float(metadata["error"]) * 1e-9


def as_float(model):
    """The model with its bfloat16 outputs, which the Python interface does not return, converted to float."""
    for output in model.graph.output:
        if output.type.tensor_type.elem_type == BFLOAT16:
            name = output.name + " as float"
            model.graph.node.append(onnx.helper.make_node("Cast", [output.name], [name], to=onnx.TensorProto.FLOAT))
            output.name = name
            output.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model


def run(path, inputs):
    model = onnx.load(path)
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(as_float(model).SerializeToString(), options, ["CPUExecutionProvider"])
    value = onnxruntime.OrtValue
    feed = {name: value.ortvalue_from_numpy_with_onnx_type(x.view(np.uint16), BFLOAT16)
            if x.dtype == ml_dtypes.bfloat16 else value.ortvalue_from_numpy(x) for name, x in inputs.items()}
    return session.run_with_ort_values(None, feed)[0].numpy(), model.graph.output[0]


def difference(got, wanted, error):
    """The differences; empty if there are none."""
    bf16 = wanted.dtype == ml_dtypes.bfloat16
    if got.shape != wanted.shape or (got.dtype != wanted.dtype and not bf16):
        return f"{got.dtype}{list(got.shape)} instead of {wanted.dtype}{list(wanted.shape)}"
    if got.size == 0:
        return ""
    if wanted.dtype.kind in "iub":
        return "" if (got == wanted).all() else f"\n{got}\ninstead of\n{wanted}"
    narrow = {"float16": 1e-3, "bfloat16": 8e-3}.get(str(wanted.dtype), 0)  # one ulp, for differences in f32
    error = error * 1e-6 if wanted.dtype == np.float64 else error + narrow
    a, b = got.astype(np.float64), wanted.astype(np.float64)
    scale = max(1, np.abs(b[np.isfinite(b)]).max(initial=0))
    with np.errstate(invalid="ignore"):
        fits = (a == b) | (np.isnan(a) & np.isnan(b)) | (np.abs(a - b) <= error * np.maximum(np.abs(b), scale * 0.1))
    return "" if fits.all() else f"{np.nanmax(np.abs(a - b))} at most, allowed {error}:\n{got}\ninstead of\n{wanted}"


def main():
    program, names = sys.argv[1], sys.argv[2:]
    failed, without_kernel, done = [], [], 0
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([program, folder], check=True)
        for path in sorted(pathlib.Path(folder).glob("*.onnx")):
            if names and path.stem not in names:
                continue
            done += 1
            tensors, error = read_tensors(path.with_suffix(".safetensors"))
            wanted = tensors.pop("y")
            try:
                got, _ = run(path, tensors)
                problem = difference(got, wanted, error)
            except Exception as e:  # from the checker or ONNX Runtime
                problem = f"{type(e).__name__}: {e}"
                if type(e).__name__ == "NotImplemented" and "Could not find an implementation" in problem:
                    without_kernel.append(f"{path.stem}: {problem[-60:]}")
                    continue
            if problem:
                failed.append(path.stem)
                print(f"{path.stem}: {problem}")
                if names:
                    print(onnx.printer.to_text(onnx.load(path)))
    print(f"onnx {onnx.__version__}, onnxruntime {onnxruntime.__version__}: {done} cases, {len(failed)} failed: "
          f"{failed}; {len(without_kernel)} without a kernel: {without_kernel}")
    return 1 if failed or not done else 0


sys.exit(main())
