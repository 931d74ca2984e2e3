#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes files with NumPy and PyTorch; tests/unit/io/{npy,pt}_test.cpp read them and compare weft's own files byte by byte.

Element i of an array, in row-major order, is (7 i mod 23 - 4) / 4 for floating types, 7 i mod 23 - 4 for signed integers,
7 i mod 23 for uint8 and whether 3 divides i for bool. Needs numpy and torch; the tests need neither. Run it only to change the
data:
    python3 tests/agree/make_files.py
"""
import io
import pathlib
import zipfile

import numpy as np
import torch

here = pathlib.Path(__file__).parent / "data"


def numbers(dtype, *shape):
    i = np.arange(np.prod(shape, dtype=int)).reshape(shape)
    kind = np.dtype(dtype).kind
    return (i % 3 == 0 if kind == "b" else 7 * i % 23 if kind == "u" else (7 * i % 23 - 4) / (4 if kind == "f" else 1)).astype(dtype)


def npy(array, version=None):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, version)
    return file.getvalue()


types = {"f64": "f8", "f32": "f4", "f16": "f2", "i64": "i8", "i32": "i4", "u8": "u1", "bool": "?"}
shapes = [(), (0,), (1,), (3,), (2, 0, 3), (5, 7), (1, 1, 1), (2, 3, 5, 7), (1, 2, 1, 3, 1, 2)]
plain = {f"{name}.{'x'.join(map(str, shape))}": numbers(t, *shape) for name, t in types.items() for shape in shapes[3:8:2] + shapes[:1]}
plain |= {"shape." + "x".join(map(str, shape)): numbers("f4", *shape) for shape in shapes}
np.savez(here / "arrays.npz", **dict(sorted(plain.items())))

# DEFLATE blocks of all three kinds, with long and short distances.
noise = np.random.default_rng(1).integers(0, 256, 4000, dtype="u1")
np.savez_compressed(here / "compressed.npz", long=numbers("i4", 70, 90), zeros=np.zeros((300, 300), "f4"), noise=noise[:600], few=numbers("u1", 3),
                    far=np.concatenate([noise[:1500], np.zeros(30000, "u1"), noise[:1500]]))
with zipfile.ZipFile(here / "noise.npz", "w") as z:
    z.writestr("noise.npy", npy(noise[:1500]))

# Files of numpy.save for arrays in other memory orders, other versions of the format, and headers as other programs write them.
with zipfile.ZipFile(here / "variants.npz", "w", zipfile.ZIP_DEFLATED) as z:
    for name, t in types.items():
        z.writestr(f"{name}.fortran.npy", npy(np.asfortranarray(numbers(t, 3, 5, 2))))
        z.writestr(f"{name}.big.npy", npy(numbers(t, 3, 5, 2).astype(np.dtype(t).newbyteorder(">"))))
        z.writestr(f"{name}.both.npy", npy(np.asfortranarray(numbers(t, 3, 5, 2)).astype(np.dtype(t).newbyteorder(">"))))
    z.writestr("f32.version2.npy", npy(numbers("f4", 3, 5, 2), (2, 0)))
    z.writestr("f32.version3.npy", npy(numbers("f4", 3, 5, 2), (3, 0)))
    for name, array in {"int8": numbers("i1", 3), "uint16": numbers("u2", 3), "uint64": numbers("u8", 3), "complex": np.zeros(2, "c8"),
                        "text": np.array(["a", "bc"]), "bytes": np.array([b"abc"]), "date": np.array(["2024-01-01"], "M8[D]"),
                        "objects": np.array([1, "a"], object), "struct": np.zeros(2, [("a", "<f4", (2, 3)), ("b", [("c", "u1")])]),
                        "bf16": np.zeros(3, "V2"), "dims": np.zeros((1,) * 7, "f4")}.items():
        z.writestr(f"{name}.npy", npy(array))
    z.writestr("readme.txt", "not an array")
    z.writestr("folder/", "")


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.hidden, self.norm = torch.nn.Linear(3, 5), torch.nn.BatchNorm1d(5)


def tensor(dtype, *shape):
    i = torch.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    if dtype == torch.bool:
        return i % 3 == 0
    n = 7 * i % 23
    return ((n - 4) / 4 if dtype.is_floating_point else n if dtype == torch.uint8 else n - 4).to(dtype)


names = {"f64": torch.float64, "f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "i64": torch.int64, "i32": torch.int32,
         "u8": torch.uint8, "bool": torch.bool}
net = Net()
with torch.no_grad():
    for p in net.parameters():
        p.copy_(tensor(p.dtype, *p.shape))
torch.save(net.state_dict(), here / "module.pt")

x = tensor(torch.float32, 3, 5, 2)
base = tensor(torch.float32, 40)
tied = tensor(torch.float32, 4)
adam = torch.optim.Adam(net.parameters(), lr=0.25)
net.hidden(torch.ones(1, 3)).sum().backward()
adam.step()
torch.save({
    "types": {name: tensor(t, 3, 5, 2) for name, t in names.items()},
    "shapes": [tensor(torch.float32, *shape) for shape in shapes],
    "transposed": {name: tensor(t, 3, 5, 2).permute(2, 0, 1).contiguous().permute(1, 2, 0) for name, t in names.items()},
    "parameter": torch.nn.Parameter(x), "offset": base[5:35].reshape(3, 5, 2), "steps": base[1::3], "column": base.reshape(8, 5)[:, 2],
    "tied": (tied, tied), "repeated": torch.zeros(1).expand(2, 3), "diagonal": base.as_strided((3,), (6,), 4), "overlapping": base.as_strided((2, 4), (1, 2), 0),
    "int8": torch.zeros(2, dtype=torch.int8), "uint16": torch.zeros(2, dtype=torch.uint16), "complex": torch.zeros(2, dtype=torch.complex64),
    "float8": torch.zeros(2, dtype=torch.float8_e4m3fn), "dims": torch.zeros((1,) * 7),
    "optimizer": adam.state_dict(), 7: {-3: tensor(torch.int32, 3)}, (1, 2): tensor(torch.int32, 3), None: torch.zeros(1), True: torch.zeros(1),
    "epoch": 3, "lr": 0.1, "on": True, "nothing": None, "title": "grün", "large": 2**40, "negative": -5, "huge": 2**70, "short": 300,
    "size": torch.Size([1, 2]), "list": [1, 2.5, "x"], "device": torch.device("cpu"), "dtype": torch.float16}, here / "checkpoint.pt")
torch.save(tensor(torch.float32, 2, 3), here / "tensor.pt")
z = torch.complex(tensor(torch.float32, 3), tensor(torch.float32, 3))
torch.save({"negative": z.conj().imag, "conjugate": z.clone().conj(), "resolved": z.conj().imag.resolve_neg()}, here / "bits.pt")
torch.save({"x": tensor(torch.float32, 2, 3)}, here / "legacy.pt", _use_new_zipfile_serialization=False)
torch.save({"x": tensor(torch.float32, 2, 3)}, here / "protocol4.pt", pickle_protocol=4)
torch.save({"args": np.float64(3)}, here / "object.pt")
with zipfile.ZipFile(here / "inflated.pt", "w", zipfile.ZIP_DEFLATED) as z:
    z.writestr("inflated/data.pkl", b"\x80\2(" + 100000 * b"]" + b"t.")
torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), here / "script.pt")
torch.serialization.set_crc32_options(False)
torch.save({"x": tensor(torch.float32, 2, 3)}, here / "unchecked.pt")
torch.serialization.set_crc32_options(True)
big = io.BytesIO()
torch.save({name: tensor(t, 2, 3) for name, t in names.items()}, big)
with zipfile.ZipFile(big) as old, zipfile.ZipFile(here / "big_endian.pt", "w") as new:  # as a big-endian machine writes it
    for i, member in enumerate(m for m in old.namelist() if m.split("/")[1] in ("data.pkl", "data", "byteorder")):
        content = b"big" if member.endswith("byteorder") else old.read(member)
        if "/data/" in member:
            size = list(names.values())[int(member.split("/")[-1])].itemsize
            content = np.frombuffer(content, f"V{size}").tobytes() if size == 1 else np.frombuffer(content, f"u{size}").byteswap().tobytes()
        new.writestr(member, content)
