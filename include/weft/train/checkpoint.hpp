// SPDX-License-Identifier: MIT
// Checkpoints of a run: each rank writes the boxes it holds, and any number of ranks with any strategy can
// read them.
//
//   checkpointer saves("runs/a", run);
//   run_position at = saves.load().value_or(run_position{});   // collective
//   saves.save({step, samples});                               // copies and writes while training continues
//
// Content of the folder, failures and cost: docs/checkpoints.md. A run that is killed at any moment, or a
// power failure, leaves the new checkpoint or the previous one intact. A resumed run is bitwise identical to
// an uninterrupted one (`exact` refuses runs that cannot be). All data that is read is covered by a checksum.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdio>
#include <future>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include <weft/base/deadline.hpp>
#include <weft/io/safetensors.hpp>
#include <weft/parallel/bind.hpp>
#include <weft/train/agreement.hpp>
#include <weft/train/checkpoint_folder.hpp>
#include <weft/train/checkpoint_restore.hpp>

namespace weft {

/// The position of a run, which is saved with its tensors.
struct run_position {
  std::int64_t step = 0;  // number of completed steps
  index_t samples = 0;    // samples taken from the loader
};

/// How a save that failed on any rank is handled; the same on all ranks.
enum class save_failure {
  stop,   // io_error from the next `save` or `finish`
  go_on,  // `last_failure` reports it; the next save tries again
};

/// Options of a checkpointer.
struct checkpoint_options {
  bool asynchronous = true;  // copy and write on a thread
  int keep = 2;              // complete checkpoints in the folder; older ones are deleted after a save
  std::chrono::milliseconds timeout{0};  // for ranks to agree on the result of a save; 0: the run's time-out
  save_failure on_failure = save_failure::stop;
  /// Refuses runs of several ranks that would not resume bitwise identically: those with a hook that
  /// remembers or with local_steps. If false, saves such runs without the state of hooks, and with local
  /// steps the copy of the first ranks.
  bool exact = true;
  bool read_only = false;                        // only loads; takes no lock and creates no folder
  std::chrono::milliseconds lock_timeout{3000};  // to wait for a job that holds the folder and is exiting
  io::file_calls* calls = &io::system_calls();   // replaced in tests; must outlive the checkpointer
};

namespace detail {
template <class Run>
concept saveable_run = requires(Run& run) {
  run.held_tensors();
  run.ranks();
  run.optimizer();
};
}  // namespace detail

/// Saves and loads the state of a bound run. Collective: all ranks construct it and call the same functions
/// in the same order.
template <class Run>
class checkpointer {
  static_assert(detail::saveable_run<Run>,
                "weft: checkpointer: takes a bound run: auto run = bind<plan>(model, optimizer); "
                "checkpointer saves(folder, run)");

 public:
  /// Locks the folder for this job, creating it and its parents if needed. Throws usage_error if the path is
  /// empty, `keep` is less than 1, or `exact` refuses the run and it is to be saved; io_error on all ranks if
  /// another job holds the folder or it cannot be used.
  checkpointer(std::string folder, Run& run, checkpoint_options o = {})
      : folder_(std::move(folder), *o.calls),
        run_(&run),
        options_(o),
        exceptions_(std::uncaught_exceptions()) {
    if (folder_.path().empty()) throw usage_error("weft: checkpointer: the path of the folder is empty");
    if (o.keep < 1)
      throw usage_error("weft: " + folder_.path() + ": keep is " + std::to_string(o.keep) +
                        ", but must be at least 1");
    if (o.exact && !o.read_only) require_exact();
    std::vector<std::int64_t> agreed(3);  // run, attempt, next number
    on_all_ranks(run.ranks(), options(), [&] {
      if (run.ranks().rank() != 0 || o.read_only) return;
      folder_.hold(o.lock_timeout);
      agreed = {random_id(), random_id(), folder_.next_serial()};
    });
    run.ranks().broadcast(agreed, 0, options()).wait();
    id_.run = static_cast<std::uint64_t>(agreed[0]);
    id_.attempt = static_cast<std::uint64_t>(agreed[1]);
    id_.name.serial = agreed[2] - 1;
  }
  checkpointer(const checkpointer&) = delete;
  checkpointer& operator=(const checkpointer&) = delete;
  /// Waits for writing to end; during stack unwinding it does not wait for missing files of other ranks. If
  /// the last save was not waited for and this rank's part failed, or on rank 0 the whole save, prints the
  /// reason to stderr.
  ~checkpointer() {
    const bool unwinds = std::uncaught_exceptions() > exceptions_;
    if (writing_.valid()) {
      if (unwinds) saving_->given_up = true;
      saving_->wait_until(deadline_after(timeout()));
      writing_.wait();
    }
    if (!pending_) return;
    const std::string failure = not_begun_.empty() ? detail::message_of([&] { get_result(); }) : not_begun_;
    if (!failure.empty())
      std::fprintf(stderr, "weft: %s: the last save failed: %s; finish() throws this\n",
                   folder_.path().c_str(), detail::without_prefix(failure).c_str());
  }

  /// Begins to save the state after `at.step` steps. Waits for the previous save, and throws io_error on all
  /// ranks if that failed on one. Tensors in host memory are copied by a thread while the next forward and
  /// backward passes read them; the run's next `step` waits for the copy. If anything else changes them
  /// before, the save fails. Throws value_error if a field of `at` or the optimizer's `steps` is negative or
  /// above 2^53, a name has a "#", or the optimizer has a state tensor that belongs to no parameter of this
  /// rank or differs in shape from this rank's part; usage_error if the checkpointer is read-only.
  /// Collective.
  void save(const run_position& at) {
    const stopwatch time(*held_up_);
    if (options_.read_only)
      throw usage_error("weft: " + folder_.path() + ": save: the checkpointer is read_only");
    if (at.step < 0 || at.samples < 0 || at.step > detail::max_count || at.samples > detail::max_count)
      throw value_error("weft: " + folder_.path() + ": save: step " + std::to_string(at.step) + ", samples " +
                        std::to_string(at.samples) + " are not between 0 and 2^53");
    require_saveable();
    finish();
    id_.name = {at.step, id_.name.serial + 1};
    pending_ = true;
    const detail::checkpoint_index index = index_at(at);
    not_begun_ = detail::message_of([&] {
      if (run_->groups().is_first_copy()) begin_writing(index);
    });
    if (!options_.asynchronous) finish();
  }

  /// Total time in milliseconds that saves have blocked this rank, in `save` and in the steps after it.
  double held_up_ms() const { return *held_up_; }

  /// Waits until the last save is on the disk, and throws io_error on all ranks if it failed on one (with
  /// save_failure::go_on it only records the failure); comm_error if a rank has failed. Returns at once if no
  /// save is pending. Collective.
  void finish() {
    if (!std::exchange(pending_, false)) return;
    communicator& ranks = run_->ranks();
    failure_ = detail::agree(
        ranks, writing_.valid() ? detail::message_of([&] { written_.get(); }) : not_begun_, options());
    if (writing_.valid()) {
      if (!failure_.empty()) saving_->given_up = true;
      saving_->wait_until(deadline_after(timeout() / 2));  // the other ranks have written, or never will
    }
    const std::string committed = writing_.valid() ? detail::message_of([&] { writing_.get(); }) : "";
    if (failure_.empty()) failure_ = detail::agree(ranks, committed, options());
    if (failure_.empty()) return;
    if (ranks.rank() == 0) folder_.discard(id_.name);
    if (options_.on_failure == save_failure::stop) throw io_error(failure_);
  }
  /// Why the last completed save failed, the same text on all ranks; empty if it succeeded.
  const std::string& last_failure() const { return failure_; }

  /// Restores the checkpoint named by `latest`; returns nullopt if there is none. If another job deletes it
  /// meanwhile, because it has saved newer ones, restores the one that `latest` names then. Throws io_error
  /// on all ranks, naming file and tensor, if it is damaged, incomplete, of another model or of an optimizer
  /// with another name (`saved_as`); the run may then be partly restored and must not continue. Each rank
  /// reads the headers of all shards, and reads the tensors that it holds rows of. Collective.
  std::optional<run_position> load() {
    finish();
    std::string text = newest_index();
    if (text.empty()) return {};
    detail::checkpoint_index index;
    for (int left = detail::checkpoint_folder::most_tries;;) {
      index = detail::checkpoint_index::parsed(text, folder_.path());
      const std::string failure =
          detail::agree(run_->ranks(), detail::message_of([&] {
                          detail::checkpoint_restorer(*run_, folder_.place_of(index.id.name)).restore(index);
                        }),
                        options());
      if (failure.empty()) break;
      const std::string newer = --left > 0 ? newest_index() : text;
      if (newer.empty() || newer == text) throw io_error(failure);
      text = newer;
    }
    run_->reload(true);  // the same elements on all ranks
    run_->reset_hook();
    restore_randomness(index);
    id_.run = index.id.run;
    return run_position{index.id.name.step, index.samples};
  }

 private:
  struct stopwatch {
    explicit stopwatch(double& ms) : to(ms) {}
    stopwatch(const stopwatch&) = delete;
    stopwatch& operator=(const stopwatch&) = delete;
    ~stopwatch() {
      to += std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
    }
    double& to;
    std::chrono::steady_clock::time_point start = std::chrono::steady_clock::now();
  };

  /// State of a pending save, shared by the thread that writes and the one that trains.
  struct saving {
    using clock = std::chrono::steady_clock;
    std::promise<void> copied, written;  // the part of this rank
    std::atomic<bool> given_up = false;  // do not wait for other ranks' files
    std::atomic<clock::rep> deadline =
        clock::time_point::max().time_since_epoch().count();  // for other ranks' files

    void wait_until(clock::time_point t) { deadline = t.time_since_epoch().count(); }
    bool is_late() const { return clock::now().time_since_epoch().count() > deadline; }
  };

  /// A box of a tensor, to be copied.
  struct to_copy {
    std::string key;
    std::shared_ptr<tensor_state> from;
    std::uint64_t version;
    stored_box part;
    io::stored_tensor* to;
  };

  static std::int64_t random_id() {
    std::random_device r;
    return static_cast<std::int64_t>(std::uint64_t{r()} << 32 | r());
  }
  std::chrono::milliseconds timeout() const {
    return options_.timeout.count() > 0 ? options_.timeout : run_->options().timeout;
  }
  comm_options options() const {
    comm_options o = run_->groups().labelled("checkpoint", true);
    o.timeout = timeout();
    return o;
  }

  /// The text of the index to resume from, as rank 0 has read it; empty if there is none. Collective.
  std::string newest_index() {
    communicator& ranks = run_->ranks();
    std::string text;
    on_all_ranks(ranks, options(), [&] {
      if (ranks.rank() != 0) return;
      if (const auto newest = folder_.newest()) text = newest->text();
    });
    return detail::text_of_rank(ranks, text, 0, options());
  }

  /// Rethrows what the writing thread threw; does nothing if no save is being written.
  void get_result() {
    if (!writing_.valid()) return;
    written_.get();
    writing_.get();
  }

  void require_exact() const {
    const parallel_options& o = run_->options();
    if (run_->ranks().size() == 1 || o.is_saved_whole()) return;
    const char* const why =
        o.local_steps > 1 ? "local_steps: ranks have different copies, of which a checkpoint holds only one"
                          : "hook: what it keeps from step to step is not in the checkpoint (for a hook that "
                            "keeps nothing, set hook.remembers = false)";
    throw usage_error("weft: " + folder_.path() + ": " + why +
                      "; {.exact = false} saves it anyway, and a resumed run is not bitwise identical");
  }
  void require_saveable() const {
    const auto require = [&](bool holds, const std::string& what) {
      if (!holds) throw value_error("weft: " + folder_.path() + ": save: " + what);
    };
    const auto& optimizer = run_->optimizer();
    require(optimizer.steps >= 0 && optimizer.steps <= detail::max_count,
            "the optimizer's steps, " + std::to_string(optimizer.steps) + ", are not between 0 and 2^53");
    const std::vector<held_tensor> held = run_->held_tensors();
    std::map<std::string_view, const held_tensor*> parameters;
    for (const held_tensor& of : held) {
      require(of.name.find('#') == of.name.npos, "the name " + of.name + " contains a \"#\"");
      if (of.local && !of.is_buffer) parameters[of.name] = &of;
    }
    for (const auto& [key, t] : optimizer.state.tensors()) {
      const auto of = parameters.find(std::string_view(key).substr(key.find('.') + 1));
      require(of != parameters.end(), "optimizer state " + key + " belongs to no parameter of this rank");
      const shape& part = of->second->local->extents;
      require(t->extents == part, "optimizer state " + key + " is " + to_string(t->extents) +
                                      ", but this rank's part of the parameter is " + to_string(part));
    }
  }

  void begin_writing(const detail::checkpoint_index& index) {
    if (writing_.valid()) {  // a rank failed before all ranks knew the result
      saving_->given_up = true;
      writing_.wait();
    }
    describe();
    saving_ = std::make_shared<saving>();
    written_ = saving_->written.get_future();
    writing_ = std::async(std::launch::async, [this, s = saving_, index] {
      try {
        const struct signal {
          std::promise<void>& to;
          ~signal() { to.set_value(); }
        } when_copied{s->copied};
        copy_rest();
      } catch (...) { return s->written.set_exception(std::current_exception()); }
      write(*s, index);
    });
    if (options_.asynchronous)  // not before there is a thread, without which the wait would not end
      run_->before_update([copied = saving_->copied.get_future().share(), held_up = held_up_] {
        const stopwatch waiting(*held_up);
        copied.wait();
      });
  }

  /// Records which boxes this rank holds, and copies those in device memory. Reuses the memory of the
  /// previous copy, because copying into new memory takes twice as long.
  void describe() {
    rest_.clear();
    copy_.metadata.clear();
    std::map<std::string, io::stored_tensor> before = std::move(copy_.tensors);
    copy_.tensors.clear();
    const auto put = [&](const std::string& name, const held_tensor& of,
                         const std::shared_ptr<tensor_state>& t) {
      weft::detail::require_own_memory(*t);
      t->where->synchronize();
      for (std::size_t i = 0; i < of.parts.size(); ++i) {
        const std::string key = detail::key_of_part(name, i);
        if (auto again = before.extract(key)) copy_.tensors.insert(std::move(again));
        io::stored_tensor& s = copy_.tensors[key];
        s.type = t->type;
        s.extents = of.parts[i].where.extents;
        to_copy c{key, t, t->version(), of.parts[i], &s};
        const bool stays = !of.is_buffer && t->where->host_accessible();  // a forward pass changes buffers
        if (stays) rest_.push_back(c);
        else copy(c);
        copy_.metadata[key] =
            detail::note_of(of.whole, of.parts[i].where).text();  // checksums are added when it is written
      }
    };
    std::map<std::string, const held_tensor*> model;
    const std::vector<held_tensor> held = run_->held_tensors();
    for (const held_tensor& of : held) {
      if (!of.saves || !of.local) continue;
      model[of.name] = &of;
      put("model." + of.name, of, of.local);
    }
    for (const auto& [key, t] : run_->optimizer().state.tensors())
      if (const auto of = model.find(key.substr(key.find('.') + 1)); of != model.end())
        put("optimizer." + key, *of->second, t);
    copy_.metadata["weft.checkpoint"] = id_.text();
    copy_.metadata["weft.part"] = std::to_string(part()) + "/" + std::to_string(parts());
  }

  /// The number of this rank's shard, and of all shards.
  int part() const { return run_->groups().owners().rank(); }
  int parts() const { return run_->groups().owners().size(); }

  static void copy(const to_copy& c) {
    const index_t size = size_of(c.from->type);
    c.to->bytes.resize(bytes_of(c.part.where.extents, c.from->type));
    for_each_run(c.part.where, c.part, [&](index_t to, index_t from, index_t count) {
      c.from->where->download(c.to->bytes.data() + to * size,
                              static_cast<const char*>(c.from->memory.data()) + from * size,
                              static_cast<std::size_t>(count * size));
    });
  }
  void copy_rest() {
    for (const to_copy& c : rest_) copy(c);
    for (const to_copy& c : std::exchange(rest_, {}))
      if (c.from->version() != c.version)
        throw io_error("weft: " + folder_.path() + ": tensor " + c.key + " was changed while it was saved");
  }

  /// Runs on the writing thread; communicates with other ranks through files only.
  void write(saving& s, const detail::checkpoint_index& index) {
    try {
      for (const auto& [key, stored] : copy_.tensors)
        copy_.metadata[key] +=
            detail::hex_text_of(io::block_sums({stored.bytes.data(), stored.bytes.size()}));
      folder_.begin(index.id.name);
      io::detail::as_safetensors(
          copy_, [&](const io::file_parts& all) { folder_.write_shard(index.id.name, part(), all); });
      s.written.set_value();
    } catch (...) { return s.written.set_exception(std::current_exception()); }
    if (part() != 0) return;
    for (int p = 1; p < parts(); ++p)
      while (!folder_.has_shard(index.id.name, p)) {
        if (s.given_up || s.is_late())
          throw io_error("weft: " + detail::path_of_shard(folder_.partial_place_of(index.id.name), p) +
                         ": is missing");
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    folder_.commit(index, parts(), options_.keep);
  }

  /// Collective.
  detail::checkpoint_index index_at(const run_position& at) const {
    const loss_scaler& scaler = run_->scaler();
    detail::checkpoint_index index{
        id_,
        at.samples,
        run_->optimizer().steps,
        std::ilogb(scaler.scale),
        scaler.growth_tracker,
        detail::name_of_optimizer<std::remove_cvref_t<decltype(run_->optimizer())>>,
        {},
        {}};
    const auto drawn = run_->randomness();
    for (const std::int64_t n : detail::of_all_ranks(
             run_->ranks(),
             {static_cast<std::int64_t>(drawn.step), static_cast<std::int64_t>(drawn.programs)}, options()))
      index.random.push_back(static_cast<std::uint64_t>(n));
    return index;
  }

  /// Continues this rank's random numbers where they were; with a different number of ranks, from the
  /// beginning of the step.
  void restore_randomness(const detail::checkpoint_index& index) {
    const auto ranks = static_cast<std::size_t>(run_->ranks().size()),
               own = 2 * static_cast<std::size_t>(run_->ranks().rank());
    if (index.random.size() == 2 * ranks)
      run_->set_randomness({run_->randomness().seed, index.random[own], index.random[own + 1]});
    else run_->begin_step(static_cast<std::uint64_t>(index.id.name.step));
  }

  detail::checkpoint_folder folder_;
  detail::checkpoint_id id_;  // id of the last save
  Run* run_;
  checkpoint_options options_;
  int exceptions_;        // std::uncaught_exceptions() at construction
  bool pending_ = false;  // there is a save that has not been waited for
  std::string not_begun_, failure_;
  io::stored_tensors copy_;    // data of the pending save, if `writing_` is valid
  std::vector<to_copy> rest_;  // tensors of the pending save that are not copied yet
  std::shared_ptr<double> held_up_ = std::make_shared<double>(0);
  std::shared_ptr<saving> saving_;
  std::future<void> written_, writing_;  // this rank's part; on rank 0 the whole checkpoint
};

/// Compile-time error: the model and its optimizer must be bound first.
template <class Model, class Optimizer>
  requires(!std::is_convertible_v<Optimizer, checkpoint_options>)
checkpointer(std::string, Model&, Optimizer&, checkpoint_options = {}) -> checkpointer<Model>;

}  // namespace weft
