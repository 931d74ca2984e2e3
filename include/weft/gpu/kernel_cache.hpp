// SPDX-License-Identifier: MIT
// Machine code of kernels, kept in a folder between processes.
//
// The contents of the folder will be executed, so the folder and its files must belong to this user only.
// Nothing here is an error for the program: if something is wrong, kernels are compiled, as without a cache.
//
//   gpu::kernel_cache cache;                                     // in the folder that the environment names
//   const digest key = gpu::kernel_key({device, driver, options, text});
//   if (const auto code = cache.find(key)) load(*code);
//   else cache.keep(key, compile(text));
#pragma once

#include <cstdint>
#include <ctime>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <weft/base/descriptor.hpp>
#include <weft/base/sha256.hpp>

namespace weft::gpu {

/// The name of machine code: SHA-256 of everything it depends on, including the versions of weft and of the
/// cache.
[[gnu::cold]] digest kernel_key(const std::vector<std::string_view>& parts);

/// A folder of machine code, with one file per key. Threads may share an object, and processes the folder:
/// files are written under unique names and then renamed.
class kernel_cache {
 public:
  /// A cache in `folder`, with at most `most_bytes` bytes of files; the least recently used files are deleted
  /// first. The folder is created, for this user only, at the first use. If it belongs to another user or
  /// others may write to it, it is not used, and the reason is printed once. With an empty name nothing is
  /// kept.
  [[gnu::cold]] explicit kernel_cache(std::string folder = default_folder(),
                                      std::uint64_t most_bytes = default_bytes());

  /// $WEFT_KERNEL_CACHE; if it is not set $XDG_CACHE_HOME/weft/kernels or $HOME/.cache/weft/kernels.
  [[gnu::cold]] static std::string default_folder();
  /// $WEFT_KERNEL_CACHE_BYTES, or 1 GiB.
  [[gnu::cold]] static std::uint64_t default_bytes();

  /// Whether there is a folder that can be used.
  [[gnu::cold]] bool is_open();

  /// The machine code that was kept under `key`, exactly as it was. A file counts as missing if it is
  /// damaged, has another key, is not a regular file of this user, or can be written by others.
  [[gnu::cold]] std::optional<std::vector<char>> find(const digest& key);

  /// Keeps machine code, replacing what the folder has under this key. Does nothing if the code cannot be
  /// written or is larger than the limit.
  [[gnu::cold]] void keep(const digest& key, std::span<const char> code);

  /// Why the folder is not used; empty if it is used, or has not been needed yet.
  const std::string& refusal() const { return refusal_; }

 private:
  struct entry {
    std::string name;
    std::uint64_t bytes;
    std::timespec used;
  };

  bool open();
  void refuse(const std::string& why);
  /// The files of the cache; first deletes what interrupted writers have left behind.
  std::vector<entry> entries() const;
  /// Counts the bytes of a new file, and deletes other files if the total exceeds the limit.
  void make_room(const std::string& added, std::uint64_t bytes);

  std::string path_, refusal_;
  std::uint64_t most_;
  std::mutex mutex_;
  bool tried_ = false;
  descriptor folder_;
  std::optional<std::uint64_t> total_;  // as known to this process; others may have written since
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/kernel_cache.ipp>
#endif
