# SPDX-License-Identifier: MIT
"""Pretty printers for gdb: tensors with dtype, shape and elements, shapes, 16-bit floats.

    (gdb) source /usr/include/weft/gdb.py        # or a line in ~/.gdbinit
    (gdb) print x
    $1 = f32 [2, 3] on cpu = {0.5, 1, 1.5, 2, 2.5, 3}

clang describes a tensor's type with -fstandalone-debug. Elements are read from host memory; `set print elements N` says how many. For other devices only dtype and shape are printed.
"""
import struct

import gdb
import gdb.printing

CODES = {"f64": ("d", 8), "f32": ("f", 4), "bf16": ("H", 2), "f16": ("e", 2), "i64": ("q", 8), "i32": ("i", 4), "u8": ("B", 1), "boolean": ("?", 1)}


def shape_of(value):
    return [int(value["extent"][i]) for i in range(int(value["order"]))]


def dtype_of(value):
    return str(value).rsplit("::", 1)[-1]


def as_number(dtype, raw):
    code, _ = CODES[dtype]
    x = struct.unpack("=" + code, raw)[0]
    if dtype == "bf16":
        x = struct.unpack("=f", struct.pack("=I", x << 16))[0]
    return x


def as_text(x):
    if isinstance(x, bool):
        return "true" if x else "false"
    return f"{x:.9g}" if isinstance(x, float) else str(x)


class shape_printer:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        return "[" + ", ".join("dyn" if e == -1 else str(e) for e in shape_of(self.value)) + "]"


class half_printer:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        dtype = "bf16" if self.value.type.strip_typedefs().name.endswith("bfloat16") else "f16"
        return as_text(as_number(dtype, int(self.value["bits"]).to_bytes(2, "little")))


class state_printer:
    """weft::tensor_state, or what a handle of it shares."""

    def __init__(self, value):
        self.value = value

    def memory(self):
        """The address of the first element, 0 if there is none."""
        memory = self.value["memory"]
        block = memory["block_"]["_M_ptr"]
        return int(block.dereference()["memory"]) + int(memory["offset_"]) if block else 0

    def to_string(self):
        dtype, shape = dtype_of(self.value["type"]), shape_of(self.value["extents"])
        text = f"{dtype} [{', '.join(map(str, shape))}]"
        size = 1
        for e in shape:
            size *= e
        try:
            at = self.memory()
            if size and not at:
                return text + ", its elements are not on this rank"
            limit = gdb.parameter("print elements") or size
            count, width = min(size, limit), CODES[dtype][1]
            raw = bytes(gdb.selected_inferior().read_memory(at, count * width)) if count else b""
            elements = [as_text(as_number(dtype, raw[i * width:(i + 1) * width])) for i in range(count)]
            return text + " = {" + ", ".join(elements) + ("..." if count < size else "") + "}"
        except gdb.MemoryError:
            return text + ", in memory of a device"


class tensor_printer:
    def __init__(self, value):
        self.value = value

    def to_string(self):
        pointer = self.value["state_"]["_M_ptr"]
        return state_printer(pointer.dereference()).to_string() if pointer else "undefined"


printers = gdb.printing.RegexpCollectionPrettyPrinter("weft")
printers.add_printer("tensor", r"^weft::(tensor|parameter)<.*>$", tensor_printer)
printers.add_printer("tensor_state", r"^weft::tensor_state$", state_printer)
printers.add_printer("shape", r"^weft::shape$", shape_printer)
printers.add_printer("half", r"^weft::(bfloat16|float16)$", half_printer)
gdb.printing.register_pretty_printer(gdb.current_objfile(), printers, replace=True)
