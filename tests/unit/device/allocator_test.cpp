// SPDX-License-Identifier: MIT
// The caching allocator on a device that fails at random, against a model of its contents: random sequences
// of allocations and frees, by one thread and by several, with uses by other queues, and with mapped pages.
#include <doctest/doctest.h>

#include <sys/mman.h>

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <thread>

#include <weft/device/device.hpp>

using namespace weft;

namespace {

constexpr std::size_t mebibyte = std::size_t{1} << 20;

/// Unexpected results; doctest's checks are not thread-safe.
void require(bool holds, const char* what) {
  if (!holds) throw std::logic_error(what);
}

/// A device of a fixed size that fails on request, with addresses whose pages are mapped by calls. It checks
/// the memory that is returned to it.
struct strict_device : cpu::cpu_backend, mapped_memory {
  strict_device(std::size_t bytes, double fails) : cpu_backend(1), most(bytes), fails_(fails) {}
  ~strict_device() override { CHECK(held == 0); }

  void* allocate(std::size_t bytes) override {
    take(bytes);
    void* const memory = cpu_backend::allocate(bytes);
    const std::lock_guard lock(mutex);
    blocks[memory] = bytes;
    return memory;
  }
  void deallocate(void* memory, std::size_t bytes) noexcept override {
    {
      const std::lock_guard lock(mutex);
      const auto found = blocks.find(memory);
      if (found == blocks.end() || found->second != bytes) std::abort();
      blocks.erase(found);
      held -= bytes;
    }
    cpu_backend::deallocate(memory, bytes);
  }
  device_room room() const override { return {most, most - held}; }
  mapped_memory* mapped() override { return this; }

  static constexpr std::size_t page = 2 * mebibyte;
  std::size_t page_bytes() const override { return page; }
  std::size_t capacity() const override { return most; }
  void* reserve(std::size_t bytes) override {
    void* const at = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED) throw device_error("no addresses");
    return at;
  }
  void unreserve(void* at, std::size_t bytes) noexcept override {
    if (!pages.empty()) std::abort();
    munmap(at, bytes);
  }
  void map(void* at, std::size_t bytes) override {
    take(bytes);
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < bytes; i += page)
      if (!pages.insert(static_cast<char*>(at) + i).second) std::abort();
    if (mprotect(at, bytes, PROT_READ | PROT_WRITE) != 0) std::abort();
  }
  void unmap(void* at, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < bytes; i += page)
      if (pages.erase(static_cast<char*>(at) + i) != 1) std::abort();
    if (madvise(at, bytes, MADV_DONTNEED) != 0 || mprotect(at, bytes, PROT_NONE) != 0) std::abort();
    held -= bytes;
  }

  const std::size_t most;
  std::atomic<std::size_t> held = 0;
  std::map<void*, std::size_t> blocks;
  std::set<char*> pages;
  std::mutex mutex;
  long faults = 0;

 private:
  void take(std::size_t bytes) {
    const std::lock_guard lock(mutex);
    const bool fails = std::uniform_real_distribution<>(0, 1)(random_) < fails_;
    faults += fails;
    if (fails || held + bytes > most) throw out_of_memory_error("strict: no memory");
    held += bytes;
  }
  double fails_;
  std::mt19937 random_{7};
};

/// A queue whose work ends when a test decides.
struct other_queue : queue_use {
  std::atomic<bool> is_done = false, is_closed = false;
  int waits = 0;
  void close() noexcept override { is_closed = true; }
  bool is_over() override { return is_done; }
  void wait() override {
    ++waits;
    is_done = true;
  }
};

/// A block in the model.
struct held_block {
  buffer memory;
  std::size_t bytes;
  std::shared_ptr<other_queue> use;
  unsigned char mark;
};

/// Sizes as in programs: many small ones, few large ones.
std::size_t random_size(std::mt19937& random) {
  const double exponent = std::uniform_real_distribution<>(0, 23.5)(random);
  return static_cast<std::size_t>(std::exp2(exponent));
}

void check_marks(const held_block& b) {
  const auto* at = static_cast<const unsigned char*>(b.memory.data());
  require(at[0] == b.mark && at[b.bytes / 2] == b.mark && at[b.bytes - 1] == b.mark,
          "a block was overwritten while it was in use");
}

/// Random requests and frees. Blocks hold marks at both ends and in the middle: if two blocks overlap, or a
/// block is handed out while it is still in use, a mark is wrong.
void use_at_random(const device& d, unsigned seed, int rounds, bool with_uses, std::size_t most,
                   long& out_of_memory) {
  std::mt19937 random(seed);
  std::vector<held_block> held;
  std::map<const void*, std::pair<std::shared_ptr<other_queue>, std::size_t>> awaited;
  std::size_t in_use = 0;
  for (int round = 0; round < rounds; ++round) {
    const auto dice = random() % 100;
    if (dice < 55 && in_use < most) {
      const std::size_t bytes = random_size(random);
      try {
        held_block b{d.allocate(bytes), bytes, nullptr, static_cast<unsigned char>(1 + random() % 255)};
        require(reinterpret_cast<std::uintptr_t>(b.memory.data()) % 64 == 0, "a block is not aligned");
        auto* const at = static_cast<unsigned char*>(b.memory.data());
        for (const auto& [address, use] : awaited)
          if (!use.first->is_done)
            require(static_cast<const unsigned char*>(address) + use.second <= at ||
                        at + bytes <= static_cast<const unsigned char*>(address),
                    "a block was reused while another queue used it");
        at[0] = at[bytes / 2] = at[bytes - 1] = b.mark;
        if (with_uses && random() % 8 == 0) {
          b.use = std::make_shared<other_queue>();
          require(d.memory().record_use(at + bytes / 2, b.use), "a block is not found by its address");
        }
        in_use += caching_allocator::size_class(bytes);
        held.push_back(std::move(b));
      } catch (const out_of_memory_error& e) {
        ++out_of_memory;
        require(e.shortage.requested == caching_allocator::size_class(bytes), "an error of another size");
      }
    } else if (dice < 98 && !held.empty()) {
      const std::size_t which = random() % held.size();
      std::swap(held[which], held.back());
      held_block b = std::move(held.back());
      held.pop_back();
      check_marks(b);
      in_use -= caching_allocator::size_class(b.bytes);
      if (b.use) awaited[b.memory.data()] = {b.use, b.bytes};
      b.memory = {};
      if (b.use) require(b.use->is_closed, "a use was not closed when its block was freed");
    } else if (dice == 98) {
      d.memory().empty_cache();
    } else if (!awaited.empty()) {
      awaited.begin()->second.first->is_done = true;
      awaited.erase(awaited.begin());
    }
  }
  for (const held_block& b : held) {
    check_marks(b);
    if (b.use) b.use->is_done = true;
  }
  for (const auto& [address, use] : awaited) use.first->is_done = true;
}

/// After all blocks are freed, none may be left in use, and all neighbors must be merged.
void check_empty(const device& d, strict_device& on) {
  CHECK(d.memory().figures().in_use == 0);
  CHECK(d.memory().figures().blocks == 0);
  d.memory().empty_cache();
  CHECK(d.memory().figures().reserved == 0);
  CHECK(d.memory().figures().awaited == 0);
  CHECK(on.held == 0);
}

const memory_options variants[] = {
    {},
    {.max_split_size = 4 * mebibyte},
    {.garbage_collection_threshold = 0.5},
    {.expandable_segments = true},
    {.garbage_collection_threshold = 0.7, .expandable_segments = true},
};

}  // namespace

TEST_CASE("allocator: random requests and frees on a device that fails at random keep every block whole") {
  for (const memory_options& o : variants)
    for (unsigned seed = 1; seed <= 4; ++seed) {
      CAPTURE(o.expandable_segments);
      CAPTURE(seed);
      const auto on = std::make_shared<strict_device>(96 * mebibyte, seed % 2 ? 0.2 : 0.0);
      const device d(on, o);
      long failed = 0;
      REQUIRE_NOTHROW(use_at_random(d, seed, 4000, true, 120 * mebibyte, failed));
      CHECK(failed > 0);
      CHECK(d.memory().figures().retries > 0);
      CHECK(d.memory().figures().failures == static_cast<std::size_t>(failed));
      if (seed % 2) CHECK(on->faults > 0);
      check_empty(d, *on);
    }
}

TEST_CASE("allocator: several threads use a device that fails at random") {
  for (const bool expands : {false, true}) {
    const auto on = std::make_shared<strict_device>(256 * mebibyte, 0.1);
    const device d(on, {.expandable_segments = expands});
    std::vector<std::thread> threads;
    std::mutex mutex;
    std::string errors;
    for (unsigned t = 0; t < 4; ++t)
      threads.emplace_back([&, t] {
        try {
          long failed = 0;
          use_at_random(d, 100 + t, 2000, true, 80 * mebibyte, failed);
          (void)d.memory().summary();
        } catch (const std::exception& e) {
          const std::lock_guard lock(mutex);
          errors += e.what();
        }
      });
    for (std::thread& t : threads) t.join();
    CHECK(errors == "");
    check_empty(d, *on);
  }
}

TEST_CASE("allocator: figures are those of a model") {
  const auto on = std::make_shared<strict_device>(1024 * mebibyte, 0);
  const device d(on, {});
  std::mt19937 random(3);
  std::vector<std::pair<buffer, std::size_t>> held;
  std::size_t in_use = 0, peak = 0, most_reserved = 0;
  for (int round = 0; round < 3000; ++round) {
    if (random() % 2 && held.size() < 60) {
      const std::size_t bytes = random_size(random);
      held.emplace_back(d.allocate(bytes), caching_allocator::size_class(bytes));
      in_use += held.back().second;
    } else if (!held.empty()) {
      const std::size_t which = random() % held.size();
      in_use -= held[which].second;
      held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
    }
    peak = std::max(peak, in_use);
    most_reserved = std::max<std::size_t>(most_reserved, on->held);
    const memory_figures f = d.memory().figures();
    REQUIRE(f.in_use == in_use);
    REQUIRE(f.peak == peak);
    REQUIRE(f.reserved == on->held);
    REQUIRE(f.peak_reserved == most_reserved);
    REQUIRE(f.blocks == held.size());
  }
  held.clear();
  std::size_t largest = 0;
  for (const auto& [memory, bytes] : on->blocks) largest = std::max(largest, bytes);
  CHECK(d.memory().figures().largest_free == largest);  // the split blocks are merged again
}

TEST_CASE("allocator: a large block is split, and whole again when its parts are freed") {
  const device d(std::make_shared<strict_device>(64 * mebibyte, 0), {});
  const void* const first = d.allocate(16 * mebibyte).data();
  {
    const buffer a = d.allocate(6 * mebibyte), b = d.allocate(4 * mebibyte), small = d.allocate(1000);
    CHECK(a.data() == first);
    CHECK(b.data() == static_cast<const char*>(first) + 6 * mebibyte);
    CHECK(d.memory().figures().requests == 2);  // a small block is not split off a large one
    CHECK(d.memory().figures().largest_free == 6 * mebibyte);
  }
  CHECK(d.memory().figures().largest_free == 16 * mebibyte);
  CHECK(d.allocate(16 * mebibyte).data() == first);
}

TEST_CASE("allocator: blocks above max_split_size stay whole, and serve requests of about their size alone") {
  const device d(std::make_shared<strict_device>(256 * mebibyte, 0), {.max_split_size = 8 * mebibyte});
  const void* const large = d.allocate(64 * mebibyte).data();
  const buffer a = d.allocate(4 * mebibyte);
  CHECK(a.data() != large);
  CHECK(d.allocate(20 * mebibyte).data() != large);
  CHECK(d.allocate(56 * mebibyte).data() == large);
}

TEST_CASE("allocator: above the garbage-collection threshold what was freed first goes back") {
  const auto on = std::make_shared<strict_device>(100 * mebibyte, 0);
  const device d(on, {.garbage_collection_threshold = 0.5});
  const buffer kept = d.allocate(10 * mebibyte);
  const void* newer = nullptr;
  {
    const buffer b = d.allocate(14 * mebibyte);
    const buffer a = d.allocate(20 * mebibyte);  // freed first
    newer = b.data();
  }
  const buffer more = d.allocate(24 * mebibyte);  // 68 MiB would be reserved
  CHECK(d.memory().figures().reserved == 48 * mebibyte);
  CHECK(d.memory().figures().largest_free == 14 * mebibyte);
  CHECK(d.allocate(14 * mebibyte).data() == newer);
  CHECK(d.memory().figures().requests == 4);
  const buffer beyond = d.allocate(40 * mebibyte);  // the threshold limits cached memory, not memory in use
  CHECK(d.memory().figures().retries == 0);
}

TEST_CASE("allocator: requests that grow are served where segments expand, and fragment where they do not") {
  // Two tensors at a time, each larger than the previous: freed memory never fits the next one.
  const auto most_reserved = [](const memory_options& o) {
    const device d(std::make_shared<strict_device>(1024 * mebibyte, 0), o);
    buffer last;
    for (std::size_t m = 4; m <= 32; m += 2) last = d.allocate(m * mebibyte);
    return d.memory().figures().peak_reserved;
  };
  CHECK(most_reserved({}) >= 180 * mebibyte);
  CHECK(most_reserved({.expandable_segments = true}) <= 100 * mebibyte);

  const auto on = std::make_shared<strict_device>(72 * mebibyte, 0);
  const device d(on, {.expandable_segments = true});
  {
    const buffer a = d.allocate(20 * mebibyte), b = d.allocate(20 * mebibyte), c = d.allocate(20 * mebibyte);
  }
  CHECK(d.memory().figures().requests == 3);
  const buffer all = d.allocate(64 * mebibyte);  // 60 MiB of it are there
  CHECK(d.memory().figures().reserved == 64 * mebibyte);
  CHECK(d.memory().figures().retries == 0);
}

TEST_CASE("allocator: pages in the middle of the range go back, and their addresses are used again") {
  const auto on = std::make_shared<strict_device>(64 * mebibyte, 0);
  const device d(on, {.expandable_segments = true});
  buffer a = d.allocate(4 * mebibyte + 1), b = d.allocate(16 * mebibyte), c = d.allocate(18 * mebibyte);
  const void* const middle = b.data();
  CHECK(on->held == 40 * mebibyte);
  b = {};
  d.memory().empty_cache();
  CHECK(on->held == 26 * mebibyte);  // 14 MiB of b are whole pages
  CHECK(d.memory().figures().reserved == 26 * mebibyte);
  b = d.allocate(16 * mebibyte);
  CHECK(b.data() == middle);
  CHECK(on->held == 40 * mebibyte);
}

TEST_CASE(
    "allocator: a block that another queue uses is reused when that is over, or when memory is wanted") {
  const device d(std::make_shared<strict_device>(8 * mebibyte, 0), {});
  const auto use = std::make_shared<other_queue>(), second = std::make_shared<other_queue>();
  buffer a = d.allocate(4 * mebibyte);
  const void* const at = a.data();
  CHECK(d.memory().record_use(a.part(100).data(), use));
  CHECK_FALSE(d.memory().record_use(&use, use));
  const auto over = std::make_shared<other_queue>();
  over->is_done = true;
  CHECK(d.memory().record_use(at, over));
  for (int again = 0; again < 3; ++again) CHECK(d.memory().record_use(at, second));
  CHECK(second.use_count() == 2);
  CHECK(over.use_count() == 1);  // finished uses do not accumulate
  a = {};
  CHECK(use->is_closed);
  CHECK(d.memory().figures().in_use == 0);
  CHECK(d.memory().figures().awaited == 4 * mebibyte);
  buffer b = d.allocate(4 * mebibyte);
  CHECK(b.data() != at);
  b = {};
  use->is_done = true;
  b = d.allocate(4 * mebibyte);
  CHECK(b.data() != at);  // the second one is not over
  b = d.allocate(3 * mebibyte);  // the device has no more: the allocator waits
  CHECK(second->waits == 1);
  CHECK(use->waits == 1);
  CHECK(d.memory().figures().awaited == 0);
  CHECK(b.data() == at);
}

TEST_CASE("allocator: out of memory says what was asked, what is held, and by whom") {
  const device d(std::make_shared<strict_device>(64 * mebibyte, 0), {});
  buffer weights = d.allocate(20 * mebibyte, "parameter"), arena = d.allocate(30 * mebibyte, "arena");
  weights.set_name("wte.weight");
  const buffer nameless = d.allocate(1000);
  std::string said;
  memory_shortage shortage;
  try {
    (void)d.allocate(16 * mebibyte, "a value of matmul");
  } catch (const out_of_memory_error& e) {
    said = e.what();
    shortage = e.shortage;
  }
  CHECK(said ==
        "strict: no memory for a value of matmul\n"
        "  in use: 52.4 MB, cached: 0 bytes; the device has 67.1 MB, of which 14.7 MB are free\n"
        "  the largest of 3 blocks in use:\n"
        "    31.5 MB  arena\n"
        "    21.0 MB  parameter wte.weight\n"
        "    1024 bytes  a tensor");
  CHECK(shortage.requested == 16 * mebibyte);
  CHECK(shortage.in_use == 50 * mebibyte + 1024);
  CHECK(shortage.attainable() == 64 * mebibyte);
  const std::string summary = memory_summary(d);
  for (const char* row : {"in use                                              52.4 MB\n",
                          "requests that failed                                      1\n",
                          "memory of the device                                67.1 MB\n",
                          "    21.0 MB  parameter wte.weight\n"}) {
    CAPTURE(summary);
    CHECK(summary.find(row) != std::string::npos);
  }
  weights = {};
  weights = d.allocate(20 * mebibyte);  // in the same place
  CHECK(memory_summary(d).find("parameter") == std::string::npos);
  CHECK(memory_summary(d).find("wte.weight") == std::string::npos);
}

TEST_CASE("allocator: a private pool gives free blocks away where memory is short, unless it is sealed") {
  using private_pool = caching_allocator::private_pool;
  const device d(std::make_shared<strict_device>(10 * mebibyte, 0), {});
  const auto free_in = [&](private_pool& pool, std::size_t bytes) {
    pool.open();
    { const buffer b = d.allocate(bytes); }
    pool.close();
  };
  private_pool first(d.memory()), second(d.memory());
  free_in(first, 4 * mebibyte);
  free_in(second, 3 * mebibyte);
  const buffer small = d.allocate(2 * mebibyte);  // of what is left
  CHECK(d.memory().figures().reserved == 9 * mebibyte);
  CHECK(first.seal());
  buffer b = d.allocate(3 * mebibyte);
  CHECK(d.memory().figures().reserved == 9 * mebibyte);
  CHECK(d.memory().figures().failures == 0);
  CHECK_FALSE(second.seal());
  CHECK_THROWS_AS((void)d.allocate(4 * mebibyte), out_of_memory_error);  // the first one holds it
  first.open();
  CHECK(d.allocate(4 * mebibyte));
  first.close();
  CHECK(first.seal());
  b = {};
  free_in(second, 3 * mebibyte);
  CHECK(second.seal());
  CHECK_THROWS_AS((void)d.allocate(3 * mebibyte), out_of_memory_error);
}

TEST_CASE("allocator: options as text, and what is wrong with them") {
  const auto o = memory_options::parse(
      "max_split_size_mb:128,garbage_collection_threshold:0.8,expandable_segments:true");
  CHECK(o.max_split_size == 128 * mebibyte);
  CHECK(o.garbage_collection_threshold == 0.8);
  CHECK(o.expandable_segments);
  CHECK_FALSE(memory_options::parse("expandable_segments:false").expandable_segments);
  CHECK(memory_options::parse("").max_split_size == memory_options::unlimited);
  for (const char* wrong :
       {"max_split:3", "max_split_size_mb:0", "max_split_size_mb:-1", "max_split_size_mb:1.5",
        "expandable_segments", "max_split_size_mb:", "garbage_collection_threshold:1.1",
        "garbage_collection_threshold:nan", "expandable_segments:True", ":", ",", "max_split_size_mb:4,",
        "max_split_size_mb:4,max_split_size_mb:8"}) {
    CAPTURE(wrong);
    CHECK_THROWS_WITH_AS(memory_options::parse(wrong), doctest::Contains("weft: WEFT_ALLOC_CONF: \""),
                         usage_error);
  }
  setenv("WEFT_ALLOC_CONF", "max_split_size_mb:64", 1);
  CHECK(device(std::make_shared<cpu::cpu_backend>(1)).memory().options().max_split_size == 64 * mebibyte);
  setenv("WEFT_ALLOC_CONF", "max_split_size:64", 1);
  CHECK_THROWS_AS(device(std::make_shared<cpu::cpu_backend>(1)), usage_error);
  unsetenv("WEFT_ALLOC_CONF");
}
