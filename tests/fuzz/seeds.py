#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Writes seed inputs for the fuzz targets: seeds.py FOLDER creates FOLDER/TARGET.corpus/NAME."""
import io
import pathlib
import struct
import sys
import zipfile
import zlib

SET, GET, ADD, COMPARE_SET, DELETE, CHECK, NUM_KEYS, WAIT, PUSH, POP, WITHDRAW = range(11)


def text(s):
    return struct.pack("<I", len(s)) + s


def texts(*all):
    return struct.pack("<I", len(all)) + b"".join(map(text, all))


def request(number, what, *fields):
    return struct.pack("<qB", number, what) + b"".join(fields)


def session(*steps):
    """Steps (client, bytes), in the format of tests/fuzz/store.cpp."""
    return b"".join(bytes([client, len(bytes_)]) + bytes_ for client, bytes_ in steps)


def number(n):
    return struct.pack("<q", n)


def record(order, begun, ended, count, group, what):
    return struct.pack("<QqqQ24s136s", order, begun, ended, count, group, what)


def safetensors(kind, size, header, data=bytes(range(1, 9))):
    """`kind` in the format of tests/fuzz/files.cpp, with a header of `size` bytes."""
    return kind + number(size) + header.ljust(size) + data


def npy(header, data):
    return b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + data


def archive(method, members):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as z:
        for name, content in members.items():
            z.writestr(name, content)
    return file.getvalue()


def deflate(data, level, strategy=0):
    stream = zlib.compressobj(level, zlib.DEFLATED, -15, strategy=strategy)
    return b"\12" + struct.pack("<H", len(data)) + stream.compress(data) + stream.flush()


W = b'"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'
PICKLE = (b"\x80\2}q\0(X\1\0\0\0wctorch._utils\n_rebuild_tensor_v2\nq\1((X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0" b"0X\3\0\0\0cpu"
          b"K\6tq\2QK\0K\2K\3\x86K\1K\2\x86\x89ccollections\nOrderedDict\n)RtRq\3X\5\0\0\0epochK\3X\1\0\0\0l](h\3G?\xf0\0\0\0\0\0\0\x8a\1\xffNeu.")
SUM = b'"0123456789abcdef"'
files = {
    "safetensors": safetensors(b"\6", 96, b'{"__metadata__":{"format":"pt"},' + W),
    "idx": b"\0\0\0\x08\1\0\0\0\2\7\3",
    "json": b'\1{"a": [1, -2.5e3, true, null, "\\u00e9\\ud83d\\ude00"], "b": {"c": {}}}',
    "index": b'\2, "version": 3, "run": ' + SUM + b', "attempt": ' + SUM + b', "step": 1, "serial": 2, "samples": 3, '
             b'"optimizer_steps": 1, "loss_scale_log2": 16, "growth_tracker": 0, "shards": [{"bytes": 9, "header_xxh64": ' + SUM + b"}]",
    "latest": b'\4, "folder": "step-1.2", "index_xxh64": ' + SUM,
    "npy": b"\7" + npy(b"{'descr': '>f4', 'fortran_order': True, 'shape': (2, 1), }\n", bytes(range(8))),
    "npy_struct": b"\7" + npy(b"{'descr': [('a', '<f4', (2, 3)), ('b', [('c', '|u1')])], 'fortran_order': False, 'shape': ()}", b""),
    "npz": b"\x08" + archive(zipfile.ZIP_DEFLATED, {"x.npy": npy(b"{'descr': '|u1', 'fortran_order': False, 'shape': (3,)}", b"abc"), "y.txt": b"y"}),
    "pt": b"\x08" + archive(zipfile.ZIP_STORED, {"a/data.pkl": PICKLE, "a/byteorder": b"big", "a/data/0": bytes(24)}),
    "pickle": b"\x09" + PICKLE,
    "deflate_dynamic": deflate(b"weft and warp, " * 40 + bytes(range(200)), 9),
    "deflate_fixed": deflate(b"weft weft weft", 9, zlib.Z_FIXED),
    "deflate_stored": deflate(b"weft", 0),
    "shard": safetensors(b"\5", 200, b'{"__metadata__":{"weft.checkpoint":"0000000000000000 0000000000000000 step-0.0",'
                         b'"weft.part":"0/1","w":"0/2 0123456789abcdef"},' + W),
}
store = {
    "set_get": session((0, request(1, SET, text(b"k"), text(b"vv"))), (1, request(2, GET, texts(b"k"))),
                       (0, request(3, NUM_KEYS)), (2, request(4, CHECK, texts(b"k", b"a"))), (0, request(5, DELETE, text(b"k")))),
    "wait": session((0, request(1, WAIT, texts(b"a", b"b"))), (1, request(1, GET, texts(b"a"))), (2, request(1, SET, text(b"b"), text(b""))),
                    (2, request(2, ADD, text(b"a"), number(7))), (0, request(2, ADD, text(b"a"), number(2**63 - 1)))),
    "queue": session((0, request(1, POP, text(b"q"))), (1, request(1, POP, text(b"q"))), (0, request(2, WITHDRAW)),
                     (2, request(1, PUSH, text(b"q"), text(b"x"))), (2, request(2, PUSH, text(b"q"), text(b"y"))), (225, b"")),
    "swap": session((0, request(1, COMPARE_SET, text(b"k"), text(b""), text(b"1"))), (1, request(1, COMPARE_SET, text(b"k"), text(b"1"), text(b"2"))),
                    (2, request(1, COMPARE_SET, text(b"none"), text(b"1"), text(b"2")))),
    "full": session(*((i % 3, request(i, PUSH, text(b"q"), text(b"x" * 200))) for i in range(9))),
}
def value(kind, bytes_):
    """A value in a call: its kind, then its text, or the contents of a vector."""
    return bytes([kind]) + bytes_
string, boolean, signed, floating, struct_ = (lambda b, k=k: value(k, text(b)) for k in (1, 3, 4, 6, 7))
def vector(*values):
    return value(2, number(len(values)) + b"".join(values))
three = signed(struct.pack("<i", 3)) + signed(number(4))
rpc = {
    "request": b"\0" + number(2) + number(1) + text(b"0") + three,
    "sum": b"\x40" + three,
    "texts": b"\x41" + string(b"a") + vector(string(b"b"), string(b"")),
    "points": b"\x42" + vector(struct_(struct.pack("<dii", 1.5, 2, 0))),
    "bools": b"\x43" + boolean(b"\1") + vector(boolean(b"\0"), boolean(b"\1")),
    "nested": b"\x44" + vector(vector(signed(b"x")), vector()),
    "throws": b"\x45" + floating(struct.pack("<f", 1)),
    "error": b"\x46" + string(b"why"),
    "nothing": b"\x47",
    "answer": b"\xc0" + number(1) + b"\1" + text(signed(struct.pack("<i", 5))),
}
flight = {
    "behind": bytes([0, 1, 2, 1]) + record(9, 5, 0, 9, b"world", b"all_reduce") + record(8, 3, 4, 8, b"world", b"barrier") + bytes(6 * 192)
              + record(8, 3, 4, 8, b"world", b"barrier"),
    "escape": bytes([255, 128, 3, 0]) + record(2**64 - 1, -1, 0, 2**64 - 1, b"\x1b[31m" * 4, b"\n" * 136),
    "nothing": bytes([0, 0, 0, 2]),
}

schedules = {
    "gpipe": b"\1# two stages\n0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n",
    "weights": b"\0010F0,0F1,0I0,0W0,0I1,0W1\n1F0, 1I0,1F1,1W0,1I1,,1W1\n",
    "interleaved": b"\0010F0,2F0,2B0,0B0\n1F0,3F0,3B0,1B0\n",
    "messages": b"\0010F0,0SEND_F0,0RECV_B0,0B0\n1RECV_F0,1F0,1B0,1SEND_B0\n",
    "deadlock": b"\0010F0,0B0,0F1,0B1\n1F0,1F1,1B0,1B1\n",
    "mesh": b"\0\7pp=2,dp=2,tp=2",
    "auto": b"\0\7pp=2,fsdp=auto,cp=1,ep=2",
}

for target, inputs in {"files": files, "store": store, "rpc": rpc, "flight": flight, "schedules": schedules}.items():
    folder = pathlib.Path(sys.argv[1]) / f"{target}.corpus"
    folder.mkdir(parents=True, exist_ok=True)
    for name, bytes_ in inputs.items():
        (folder / name).write_bytes(bytes_)
