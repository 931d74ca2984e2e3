// SPDX-License-Identifier: MIT
// Fuzz target for the readers of files: any bytes give a value or an exception of weft, never more.
// The first byte chooses the reader.
#include <cstdint>
#include <fstream>
#include <sstream>

#include <weft/io/safetensors.hpp>
#include <weft/train/idx.hpp>

namespace {

void read_as_safetensors(const std::string& bytes) {
  std::istringstream in(bytes);
  const weft::io::stored_tensors read = weft::io::detail::safetensors_reader(in, bytes.size(), "fuzz").read(true);
  for (const auto& [name, t] : read.tensors)
    if (t.bytes.size() != static_cast<std::size_t>(t.extents.size() * weft::size_of(t.type))) __builtin_trap();
}

void read_as_idx(const std::string& bytes) {
  static const std::string path = std::string(std::getenv("TMPDIR") ? std::getenv("TMPDIR") : "/tmp") + "/weft-fuzz-idx";
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const weft::idx_array read = weft::read_idx(path);
  if (read.bytes.size() != static_cast<std::size_t>(read.extents.size())) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  try {
    if (data[0] % 8 == 0) read_as_idx(bytes);
    else read_as_safetensors(bytes);
  } catch (const weft::error&) {
  }
  return 0;
}
