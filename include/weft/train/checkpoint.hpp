// SPDX-License-Identifier: MIT
// Checkpoints of a run: each rank writes the rows it holds, and any number of ranks with any
// strategy reads them back.
//
//   checkpointer saves("runs/a", run);
//   run_position at = saves.load().value_or(run_position{});   // collective
//   saves.save({step, samples});                               // copies and writes while training goes on
//
// A checkpoint is a folder step-N: a safetensors file for each rank, whose metadata says which rows
// it holds and their checksums, and an index that is written last. `latest` then names the folder.
// A run that is killed at any moment leaves the checkpoint before. A run that goes on from one
// computes the same bits as one that never stopped.
#pragma once

#include <chrono>
#include <filesystem>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include <weft/base/philox.hpp>
#include <weft/io/safetensors.hpp>
#include <weft/parallel/bind.hpp>

namespace weft {

/// Where a run stands, besides its tensors.
struct run_position {
  std::int64_t step = 0;  // steps done
  index_t samples = 0;    // samples taken from the loader
};

struct checkpoint_options {
  bool asynchronous = true;  // copy and write on a thread
  int keep = 2;              // checkpoints; older ones are deleted
  std::chrono::seconds timeout{600};  // for the files of other ranks
};

namespace detail {

inline constexpr int checkpoint_version = 1;

/// A checksum of bytes: not against malice, but against disks. Four sums go on side by side.
inline std::uint64_t checksum(const std::vector<char>& bytes) {
  std::uint64_t h[4] = {bytes.size(), 1, 2, 3};
  for (std::size_t i = 0; i < bytes.size(); i += 8) {
    std::uint64_t word = 0;
    std::memcpy(&word, bytes.data() + i, std::min<std::size_t>(8, bytes.size() - i));
    std::uint64_t& sum = h[i / 8 % 4];
    sum = (sum ^ word) * 0x9e3779b97f4a7c15u;
    sum ^= sum >> 29;
  }
  return mix(mix(mix(h[0], h[1]), h[2]), h[3]);
}

/// "3/11 0x12ab": the first row of a piece, the rows of the whole, the checksum.
struct piece_note {
  index_t first_row = 0, rows = 0;
  std::uint64_t sum = 0;

  std::string text() const {
    char t[80];
    std::snprintf(t, sizeof t, "%lld/%lld %016llx", static_cast<long long>(first_row), static_cast<long long>(rows),
                  static_cast<unsigned long long>(sum));
    return t;
  }
  static std::optional<piece_note> parsed(const std::string& text) {
    piece_note n;
    const char *at = text.data(), *end = at + text.size();
    auto r = std::from_chars(at, end, n.first_row);
    if (r.ec != std::errc() || r.ptr == end || *r.ptr != '/') return {};
    r = std::from_chars(r.ptr + 1, end, n.rows);
    if (r.ec != std::errc() || r.ptr == end || *r.ptr != ' ') return {};
    r = std::from_chars(r.ptr + 1, end, n.sum, 16);
    constexpr index_t most = index_t{1} << 48;
    if (r.ec != std::errc() || r.ptr != end || n.first_row < 0 || n.rows < 0 || n.first_row > most || n.rows > most) return {};
    return n;
  }
};

inline index_t rows_of(const shape& s) { return s.order > 0 ? s[0] : 1; }

inline std::string rank_file(const std::filesystem::path& folder, int part) {
  return (folder / ("rank-" + std::to_string(part) + ".safetensors")).string();
}

/// Writes a short text so that it appears whole or not at all.
inline void write_text(const std::filesystem::path& path, const std::string& text) {
  const std::filesystem::path temporary = path.string() + ".partial";
  std::ofstream out(temporary, std::ios::binary | std::ios::trunc);
  out << text << std::flush;
  if (!out) throw io_error("weft: " + path.string() + ": cannot be written");
  out.close();
  std::error_code failed;
  std::filesystem::rename(temporary, path, failed);
  if (failed) throw io_error("weft: " + path.string() + ": " + failed.message());
}

}  // namespace detail

/// Saves and loads the state of a bound run. All ranks construct it and call the same functions.
template <class Run>
class checkpointer {
 public:
  checkpointer(std::string folder, Run& run, checkpoint_options o = {}) : folder_(std::move(folder)), run_(&run), options_(o) {
    std::vector<std::int64_t> nonce{run.ranks().rank() == 0 ? static_cast<std::int64_t>(std::random_device{}()) : 0};
    run.ranks().broadcast(nonce, 0, {"checkpoint", run.options().timeout, true}).wait();
    attempt_ = std::to_string(nonce[0]);
  }
  checkpointer(const checkpointer&) = delete;
  checkpointer& operator=(const checkpointer&) = delete;
  ~checkpointer() {
    if (writing_.valid()) writing_.wait();
  }

  /// Begins to save the state after `at.step` steps. Waits for the save before, and throws io_error
  /// if that one failed. What the host can read is copied by a thread while the next forward and
  /// backward passes read it; the run's next `step` waits until it is. Nothing else may change it
  /// before: a tensor that was changed meanwhile is an io_error at the end.
  void save(const run_position& at) {
    const stopwatch time(*held_up_);
    finish();
    if (run_->groups().replicas().rank() != 0) return;
    describe();
    const auto write = [this, step = at.step, index = index_text(at)] {
      add_checksums(copy_);
      write_part(step, index);
    };
    if (!options_.asynchronous) {
      copy_rest();
      write();
      return;
    }
    const auto copied = std::make_shared<std::promise<void>>();
    run_->before_update([done = copied->get_future().share(), held_up = held_up_] {
      const stopwatch waiting(*held_up);
      done.wait();
    });
    writing_ = std::async(std::launch::async, [this, copied, write] {
      {
        const struct signal {
          std::promise<void>& to;
          ~signal() { to.set_value(); }
        } when_copied{*copied};
        copy_rest();
      }
      write();
    });
  }

  /// How long saves have held up this rank, in milliseconds: in `save`, and in the steps after.
  double held_up_ms() const { return *held_up_; }

  /// Waits until this rank's part of the last save is on disk; on rank 0, until all of it is.
  void finish() {
    if (writing_.valid()) writing_.get();
  }

  /// Restores the last whole checkpoint. None if there is none; io_error if it is damaged or of
  /// another model.
  std::optional<run_position> load() {
    namespace fs = std::filesystem;
    std::ifstream latest(fs::path(folder_) / "latest");
    std::string name;
    if (!latest || !std::getline(latest, name)) return {};
    if (name.find('/') != name.npos) throw io_error("weft: " + folder_ + "/latest: names no folder of this place");
    const fs::path from = fs::path(folder_) / name;
    const io::json index = read_index(from);
    const auto number = [&](const char* key) {
      const io::json* value = index.find(key);
      std::int64_t n = 0;
      if (!value || value->type != io::json::kind::number ||
          std::from_chars(value->string.data(), value->string.data() + value->string.size(), n).ec != std::errc())
        throw io_error("weft: " + (from / "index.json").string() + ": has no " + key);
      return n;
    };
    if (number("version") > detail::checkpoint_version)
      throw io_error("weft: " + from.string() + ": was written by a later version of weft");
    const std::int64_t parts = number("parts");
    if (parts < 1 || parts > 1 << 20) throw io_error("weft: " + (from / "index.json").string() + ": parts is " + std::to_string(parts));
    std::vector<wanted> all = what_is_wanted(index, from);
    for (int part = 0; part < parts; ++part) take_from(detail::rank_file(from, part), all);
    for (const wanted& w : all) {
      ++w.to->version;
      if (w.rows_found != detail::rows_of(w.to->extents))
        throw io_error("weft: " + from.string() + ": tensor " + w.key + ": rows are missing");
    }
    run_->optimizer().steps = number("optimizer_steps");
    if (index.find("loss_scale_log2")) {  // not before mixed precision
      loss_scaler scaler = run_->scaler();
      scaler.scale = std::ldexp(1.0, static_cast<int>(std::clamp<std::int64_t>(number("loss_scale_log2"), -24, 100)));
      scaler.growth_tracker = number("growth_tracker");
      run_->set_scaler(scaler);
    }
    run_->reload();
    return run_position{number("step"), number("samples")};
  }

 private:
  /// A local tensor to be filled.
  struct wanted {
    std::string key;
    std::shared_ptr<tensor_state> to;
    index_t first_row;
    shape whole;
    index_t rows_found = 0;
  };

  struct stopwatch {
    explicit stopwatch(double& ms) : to(ms) {}
    stopwatch(const stopwatch&) = delete;
    stopwatch& operator=(const stopwatch&) = delete;
    ~stopwatch() { to += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count(); }
    double& to;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  };

  /// A tensor that the host can read, to be copied.
  struct to_copy {
    std::string key;
    std::shared_ptr<tensor_state> from;
    std::uint64_t version;
    io::stored_tensor* to;
  };

  /// Notes what this rank holds and where it belongs, and copies what lies on devices. The memory is
  /// that of the copy before: a copy into new memory takes twice as long.
  void describe() {
    rest_.clear();
    const auto put = [&](const std::string& key, const std::string& name, const std::shared_ptr<tensor_state>& t, bool later) {
      const auto [first, whole] = run_->parallel().place_of(name);
      io::stored_tensor& s = copy_.tensors[key];
      if (later && t->where->host_accessible()) {
        io::store_form(*t, s);
        rest_.push_back({key, t, t->version, &s});
      } else {
        io::store(*t, s);
      }
      if (s.extents.order == 0) s.extents = {1, {1}};
      copy_.metadata[key] = detail::piece_note{first, detail::rows_of(whole), 0}.text();  // its sum when it is written
    };
    for (const auto& [name, p] : run_->local()) put("model." + name, name, p, true);
    for (const auto& [key, t] : run_->optimizer().state.tensors())
      put("optimizer." + key, key.substr(key.find('.') + 1), t, true);
    if (run_->groups().part() == 0)  // at once: a forward pass may change them
      for (const auto& [name, b] : run_->parallel().buffers()) put("model." + name, name, b, false);
    copy_.metadata["weft.attempt"] = attempt_;
  }

  void copy_rest() {
    for (const to_copy& c : rest_) {
      c.to->bytes.resize(c.from->bytes());
      if (!c.to->bytes.empty()) std::memcpy(c.to->bytes.data(), c.from->memory.data(), c.to->bytes.size());
    }
    for (const to_copy& c : std::exchange(rest_, {}))
      if (c.from->version != c.version)
        throw io_error("weft: " + folder_ + ": tensor " + c.key + " was changed while it was saved");
  }

  static void add_checksums(io::stored_tensors& file) {
    for (const auto& [key, stored] : file.tensors) {
      detail::piece_note note = *detail::piece_note::parsed(file.metadata[key]);
      note.sum = detail::checksum(stored.bytes);
      file.metadata[key] = note.text();
    }
  }

  std::filesystem::path step_folder(std::int64_t step) const {
    return std::filesystem::path(folder_) / ("step-" + std::to_string(step));
  }

  /// On a thread of its own: nothing here talks to other ranks but through files.
  void write_part(std::int64_t step, const std::string& index) const {
    const std::filesystem::path to = step_folder(step);
    std::error_code failed;
    std::filesystem::create_directories(to, failed);
    if (failed) throw io_error("weft: " + to.string() + ": " + failed.message());
    const int part = run_->groups().part();
    io::write_safetensors(detail::rank_file(to, part), copy_);
    if (part != 0) return;
    for (int p = 1; p < run_->groups().parts(); ++p) await(detail::rank_file(to, p));
    detail::write_text(to / "index.json", index);
    detail::write_text(std::filesystem::path(folder_) / "latest", to.filename().string() + "\n");
    delete_older(step);
  }

  /// Waits for another rank's file of this attempt.
  void await(const std::string& path) const {
    const auto deadline = std::chrono::steady_clock::now() + options_.timeout;
    for (;;) {
      std::error_code none;
      if (std::filesystem::exists(path, none) && io::read_safetensors_header(path).metadata["weft.attempt"] == attempt_) return;
      if (std::chrono::steady_clock::now() > deadline)
        throw io_error("weft: " + path + ": has not been written within " + std::to_string(options_.timeout.count()) + " s");
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }

  std::string index_text(const run_position& at) const {
    const loss_scaler& scaler = run_->scaler();
    std::string t = "{\"version\": " + std::to_string(detail::checkpoint_version) + ", \"parts\": " +
                    std::to_string(run_->groups().parts()) + ", \"step\": " + std::to_string(at.step) +
                    ", \"samples\": " + std::to_string(at.samples) +
                    ", \"optimizer_steps\": " + std::to_string(run_->optimizer().steps) +
                    ", \"loss_scale_log2\": " + std::to_string(std::ilogb(scaler.scale)) +
                    ", \"growth_tracker\": " + std::to_string(scaler.growth_tracker) + ", \"tensors\": [";
    bool first = true;
    for (const auto& [key, stored] : copy_.tensors) {
      if (!std::exchange(first, false)) t += ", ";
      t += io::json_string(key);
    }
    return t + "]}\n";
  }

  void delete_older(std::int64_t than) const {
    std::vector<std::int64_t> steps;
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder_, none)) {
      const std::string name = entry.path().filename().string();
      std::int64_t step = 0;
      const bool ours = name.starts_with("step-") &&
                        std::from_chars(name.data() + 5, name.data() + name.size(), step).ptr == name.data() + name.size();
      if (ours && step < than) steps.push_back(step);
    }
    std::sort(steps.rbegin(), steps.rend());
    for (std::size_t i = static_cast<std::size_t>(std::max(options_.keep - 1, 0)); i < steps.size(); ++i)
      std::filesystem::remove_all(step_folder(steps[i]), none);
  }

  static io::json read_index(const std::filesystem::path& from) {
    const std::string path = (from / "index.json").string();
    std::ifstream in(path, std::ios::binary);
    if (!in) throw io_error("weft: " + path + ": cannot be opened");
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    return io::parse_json(text, path);
  }

  std::vector<wanted> what_is_wanted(const io::json& index, const std::filesystem::path& from) const {
    const io::json* tensors = index.find("tensors");
    if (!tensors || tensors->type != io::json::kind::array) throw io_error("weft: " + from.string() + ": the index lists no tensors");
    std::vector<std::string> kinds;  // of optimiser state
    std::size_t tensors_of_model = 0;
    for (const io::json& t : tensors->items) {
      const std::string& key = t.string;
      tensors_of_model += key.starts_with("model.");
      if (!key.starts_with("optimizer.")) continue;
      const std::string kind = key.substr(10, key.find('.', 10) - 10);
      if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
    const state_dict_t& buffers = run_->parallel().buffers();
    const std::size_t expected = run_->local().size() + buffers.size();
    if (tensors_of_model != expected)
      throw io_error("weft: " + from.string() + ": is of another model: it has " + std::to_string(tensors_of_model) +
                     " parameters and buffers, this one has " + std::to_string(expected));
    std::vector<wanted> all;
    const auto listed = [&](const std::string& key) {
      return std::any_of(tensors->items.begin(), tensors->items.end(), [&](const io::json& t) { return t.string == key; });
    };
    const auto want = [&](const std::string& key, const std::string& name, const std::shared_ptr<tensor_state>& t) {
      if (!listed(key)) throw io_error("weft: " + from.string() + ": is of another model: no " + name);
      const auto [first, whole] = run_->parallel().place_of(name);
      all.push_back({key, t, first, whole});
    };
    for (const auto& [name, b] : buffers) want("model." + name, name, b);
    for (const auto& [name, p] : run_->local()) {
      want("model." + name, name, p);
      for (const std::string& kind : kinds) {
        if (!listed("optimizer." + kind + "." + name)) continue;
        auto t = make_state(p->where, p->extents, p->type);
        run_->optimizer().state.set(kind, name, t);
        want("optimizer." + kind + "." + name, name, t);
      }
    }
    return all;
  }

  /// Copies the rows of one file that are wanted here.
  static void take_from(const std::string& path, std::vector<wanted>& all) {
    const io::stored_tensors header = io::read_safetensors_header(path);
    const auto overlap = [&](const wanted& w) -> std::pair<index_t, index_t> {
      const auto found = header.tensors.find(w.key);
      if (found == header.tensors.end()) return {0, 0};  // no optimiser state where a rank had no rows
      const auto text = header.metadata.find(w.key);
      const auto note = text == header.metadata.end() ? std::nullopt : detail::piece_note::parsed(text->second);
      shape whole = found->second.extents;
      if (note && whole.order > 0) whole[0] = note->rows;
      if (!note || !(whole == w.whole) || found->second.type != w.to->type)
        throw io_error("weft: " + path + ": tensor " + w.key + " is of " + name_of(found->second.type) + " " + to_string(whole) +
                       ", the model wants " + name_of(w.to->type) + " " + to_string(w.whole));
      return {std::max(note->first_row, w.first_row),
              std::min(note->first_row + detail::rows_of(found->second.extents), w.first_row + detail::rows_of(w.to->extents))};
    };
    if (std::none_of(all.begin(), all.end(), [&](const wanted& w) {
          const auto [begin, end] = overlap(w);
          return begin < end;
        }))
      return;
    const io::stored_tensors file = io::read_safetensors(path);
    for (wanted& w : all) {
      const auto [begin, end] = overlap(w);
      if (begin >= end) continue;
      const io::stored_tensor& from = file.tensors.at(w.key);
      const detail::piece_note note = *detail::piece_note::parsed(file.metadata.at(w.key));
      if (detail::checksum(from.bytes) != note.sum)
        throw io_error("weft: " + path + ": tensor " + w.key + " is damaged: its checksum is another");
      const auto row = w.to->bytes() / static_cast<std::size_t>(detail::rows_of(w.to->extents));
      w.to->where->upload(static_cast<char*>(w.to->memory.data()) + static_cast<std::size_t>(begin - w.first_row) * row,
                          from.bytes.data() + static_cast<std::size_t>(begin - note.first_row) * row,
                          static_cast<std::size_t>(end - begin) * row);
      w.rows_found += end - begin;
    }
  }

  std::string folder_, attempt_;
  Run* run_;
  checkpoint_options options_;
  io::stored_tensors copy_;  // what is being written, if `writing_` is
  std::vector<to_copy> rest_;  // of it, not copied yet
  std::shared_ptr<double> held_up_ = std::make_shared<double>(0);
  std::future<void> writing_;
};

}  // namespace weft
