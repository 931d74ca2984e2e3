// SPDX-License-Identifier: MIT
// Machine code of kernels, kept in a folder from one process to the next.
//
// What is in the folder will be run, so it has to belong to this user alone, and so do the files. Nothing
// here is an error of the program: where something is wrong, kernels are compiled, as without a cache.
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

/// The name of machine code: SHA-256 of all that it depends on, with the versions of weft and of the cache.
[[gnu::cold]] digest kernel_key(const std::vector<std::string_view>& parts);

/// A folder of machine code, a file for each key. Threads may share an object, and processes the folder:
/// files are written under names of their own and renamed.
class kernel_cache {
 public:
  /// A cache in `folder`, with at most `most_bytes` bytes of files, of which those go first that were not
  /// used for the longest time. The folder is created, for this user alone, at the first use. It is not used,
  /// and the reason is printed once, if it belongs to another user or others may write to it. Without a name
  /// nothing is kept.
  [[gnu::cold]] explicit kernel_cache(std::string folder = default_folder(),
                                      std::uint64_t most_bytes = default_bytes());

  /// $WEFT_KERNEL_CACHE; if it is not set $XDG_CACHE_HOME/weft/kernels or $HOME/.cache/weft/kernels.
  [[gnu::cold]] static std::string default_folder();
  /// $WEFT_KERNEL_CACHE_BYTES, or 1 GiB.
  [[gnu::cold]] static std::uint64_t default_bytes();

  /// Whether there is a folder, and it can be used.
  [[gnu::cold]] bool is_open();

  /// The machine code that was kept under `key`, exactly as it was: a file that is damaged, has another key,
  /// is no regular file of this user, or that others may write, counts as missing.
  [[gnu::cold]] std::optional<std::vector<char>> find(const digest& key);

  /// Keeps machine code, in place of what the folder has under this key. If it cannot be written, or is
  /// larger than the limit, nothing happens.
  [[gnu::cold]] void keep(const digest& key, std::span<const char> code);

  /// Why the folder is not used; empty if it is, or was not needed yet.
  const std::string& refusal() const { return refusal_; }

 private:
  struct entry {
    std::string name;
    std::uint64_t bytes;
    std::timespec used;
  };

  bool open();
  void refuse(const std::string& why);
  /// The files of the cache, after what writers left behind that ended in the middle was deleted.
  std::vector<entry> entries() const;
  /// Counts the bytes of a new file, and deletes others if all together are too many.
  void make_room(const std::string& added, std::uint64_t bytes);

  std::string path_, refusal_;
  std::uint64_t most_;
  std::mutex mutex_;
  bool tried_ = false;
  descriptor folder_;
  std::optional<std::uint64_t> total_;  // as far as this process knows; others may have written since
};

}  // namespace weft::gpu

#ifndef WEFT_COMPILED
#include <weft/gpu/impl/kernel_cache.ipp>
#endif
