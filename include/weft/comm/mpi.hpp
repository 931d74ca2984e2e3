// SPDX-License-Identifier: MIT
// Ranks as processes started by mpirun, on Boost.MPI and MPI's non-blocking collectives.
//
//   boost::mpi::environment mpi(boost::mpi::threading::funneled);
//   mpi_communicator ranks(boost::mpi::communicator{});
//
// Before data moves, ranks tell each other which operation they mean, so that a mistake is an error
// on every rank and no corruption. Reductions exchange parts, add them by the tree of reduce.hpp
// and gather: the same bits as on threads. Open MPI makes no progress by itself: waiting and
// polling move operations on, in the order in which they were called.
#pragma once

#include <mpi.h>

#include <boost/mpi/communicator.hpp>
#include <boost/mpi/environment.hpp>

#include <algorithm>
#include <deque>
#include <limits>
#include <thread>

#include <weft/comm/communicator.hpp>
#include <weft/comm/fingerprint.hpp>
#include <weft/comm/mpi_watch.hpp>
#include <weft/comm/reduce.hpp>

namespace weft {

namespace detail {

/// What the operations of a group share.
struct mpi_channels {
  boost::mpi::communicator data, control;
  std::vector<int> members;  // by their numbers in the world
};

/// One operation on its way through its stages.
class mpi_operation {
 public:
  mpi_operation(operation o, const mpi_channels& over, std::uint64_t number)
      : what_(std::move(o)),
        data_(over.data),
        control_(over.control),
        members_(over.members),
        number_(number) {
    MPI_Comm_rank(data_, &rank_);
    MPI_Comm_size(data_, &ranks_);
  }
  mpi_operation(const mpi_operation&) = delete;
  mpi_operation& operator=(const mpi_operation&) = delete;

  bool over() const { return stage_ == stage::over; }
  std::string failure;  // why it was refused, if it was

  /// Moves on as far as it goes without waiting.
  void advance() {
    while (stage_ != stage::over && requests_done()) next_stage();
  }

  /// Gives up messages that nobody will answer; false if MPI still works in our buffers.
  bool withdraw() {
    if (stage_ != stage::agree && !is_message(what_.kind))
      return stage_ == stage::over || stage_ == stage::start;
    for (MPI_Request& r : requests_)
      if (r != MPI_REQUEST_NULL) {
        MPI_Cancel(&r);
        MPI_Request_free(&r);
      }
    return true;
  }

  const operation& what() const { return what_; }
  std::string doing() const {
    return (is_message(what_.kind) ? "" : "#" + std::to_string(number_) + " ") + what_.text();
  }
  std::uint64_t number() const { return number_; }

 private:
  enum class stage { start, agree, move, collect, over };

  bool requests_done() {
    int done = 1;
    if (!requests_.empty())
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
    return done;
  }

  void next_stage() {
    requests_.clear();
    switch (stage_) {
      case stage::start:
        if (is_message(what_.kind) || ranks_ == 1) return begin_move();
        begin_agreement();
        break;
      case stage::agree:
        failure = disagreement_of_all();
        if (failure.empty()) begin_move();
        else stage_ = stage::over;
        break;
      case stage::move:
        if (is_reduction(what_.kind)) return begin_collect();
        stage_ = stage::over;
        break;
      default: stage_ = stage::over;
    }
  }

  /// Each rank tells each other rank which operation it means.
  void begin_agreement() {
    const auto n = static_cast<std::size_t>(ranks_);
    meant_.assign(n, {});
    fingerprint& mine = meant_[static_cast<std::size_t>(rank_)] = fingerprint(what_);
    requests_.assign(2 * n, MPI_REQUEST_NULL);
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      const auto at = static_cast<std::size_t>(r);
      MPI_Irecv(&meant_[at], sizeof(fingerprint), MPI_BYTE, r, 0, control_, &requests_[2 * at]);
      MPI_Isend(&mine, sizeof(fingerprint), MPI_BYTE, r, 0, control_, &requests_[2 * at + 1]);
    }
    stage_ = stage::agree;
  }
  std::string disagreement_of_all() const {
    std::vector<std::string> texts;
    for (const fingerprint& f : meant_) texts.push_back(f.words());
    return disagreement(texts, members_, number_);
  }

  MPI_Datatype element() const {
    switch (size_of(what_.type())) {
      case 8: return MPI_UINT64_T;
      case 4: return MPI_UINT32_T;
      case 2: return MPI_UINT16_T;
      default: return MPI_BYTE;
    }
  }
  static int as_int(index_t n) {
    if (n > std::numeric_limits<int>::max())
      throw comm_error("weft: mpi: " + std::to_string(n) + " elements in one part; MPI counts to 2^31");
    return static_cast<int>(n);
  }
  struct parts {
    std::vector<int> count, at;
  };
  static parts parts_of(const rank_counts& counts) {
    parts p;
    index_t at = 0;
    for (index_t c : counts) {
      p.count.push_back(as_int(c));
      p.at.push_back(as_int(at));
      at += c;
    }
    return p;
  }

  void begin_move() {
    stage_ = stage::move;
    requests_.assign(1, MPI_REQUEST_NULL);
    MPI_Request* r = requests_.data();
    const void* in = what_.in.data;
    void* out = what_.out.data;
    const MPI_Datatype type = element();
    sent_ = parts_of(what_.in_counts);
    received_ = parts_of(what_.out_counts);
    const auto own = static_cast<std::size_t>(rank_);
    switch (what_.kind) {
      case collective::all_reduce:
      case collective::reduce: sent_ = parts_of(even_parts(what_.out.count, ranks_)); [[fallthrough]];
      case collective::reduce_scatter: {
        const index_t mine = sent_.count[own];
        received_ = parts_of(rank_counts(static_cast<std::size_t>(ranks_), mine));
        gathered_.resize(static_cast<std::size_t>(mine * ranks_ * size_of(what_.type())));
        MPI_Ialltoallv(in, sent_.count.data(), sent_.at.data(), type, gathered_.data(),
                       received_.count.data(), received_.at.data(), type, data_, r);
        break;
      }
      case collective::broadcast: MPI_Ibcast(out, as_int(what_.out.count), type, what_.root, data_, r); break;
      case collective::all_gather:
        MPI_Iallgatherv(in, as_int(what_.in.count), type, out, received_.count.data(), received_.at.data(),
                        type, data_, r);
        break;
      case collective::gather:
        MPI_Igatherv(in, as_int(what_.in.count), type, out, received_.count.data(), received_.at.data(), type,
                     what_.root, data_, r);
        break;
      case collective::scatter:
        MPI_Iscatterv(in, sent_.count.data(), sent_.at.data(), type, out, as_int(what_.out.count), type,
                      what_.root, data_, r);
        break;
      case collective::all_to_all:
        MPI_Ialltoallv(in, sent_.count.data(), sent_.at.data(), type, out, received_.count.data(),
                       received_.at.data(), type, data_, r);
        break;
      case collective::send:
        MPI_Isend(in, as_int(what_.in.count), type, what_.root, what_.tag, data_, r);
        break;
      case collective::receive:
        MPI_Irecv(out, as_int(what_.out.count), type, what_.root, what_.tag, data_, r);
        break;
      default: break;  // a barrier: all have agreed
    }
  }

  /// The parts of all ranks are here: adds them up, and hands the sums on.
  void begin_collect() {
    const index_t mine = sent_.count[static_cast<std::size_t>(rank_)];
    visit_type(what_.type(), [&]<class T>(T) {
      std::vector<const void*> sources;
      for (int r = 0; r < ranks_; ++r)
        sources.push_back(gathered_.data() + static_cast<std::size_t>(r * mine) * sizeof(T));
      const std::unique_ptr<T[]> sums(new T[static_cast<std::size_t>(mine)]);
      reduce_ranks<T>(sources, 0, mine, what_.op, sums.get());
      char* to =
          what_.kind == collective::reduce_scatter ? static_cast<char*>(what_.out.data) : gathered_.data();
      if (mine) std::memcpy(to, sums.get(), static_cast<std::size_t>(mine) * sizeof(T));
    });
    stage_ = stage::collect;
    requests_.assign(1, MPI_REQUEST_NULL);
    if (what_.kind == collective::all_reduce)
      MPI_Iallgatherv(gathered_.data(), as_int(mine), element(), what_.out.data, sent_.count.data(),
                      sent_.at.data(), element(), data_, requests_.data());
    else if (what_.kind == collective::reduce)
      MPI_Igatherv(gathered_.data(), as_int(mine), element(), what_.out.data, sent_.count.data(),
                   sent_.at.data(), element(), what_.root, data_, requests_.data());
  }

  operation what_;
  MPI_Comm data_, control_;
  const std::vector<int>& members_;
  std::uint64_t number_;
  int rank_ = 0, ranks_ = 1;
  stage stage_ = stage::start;
  std::vector<MPI_Request> requests_;
  std::vector<fingerprint> meant_;
  parts sent_, received_;
  std::vector<char> gathered_;
};

/// The operations of one group that are under way. Collectives go one after the other, so that all
/// ranks give their stages to MPI in one order; messages go beside them.
class mpi_queue {
 public:
  mpi_queue(boost::mpi::communicator c, std::shared_ptr<mpi_watch> watch, std::string id,
            std::vector<int> members)
      : channels_{{c, boost::mpi::comm_duplicate}, {c, boost::mpi::comm_duplicate}, std::move(members)},
        watch_(std::move(watch)),
        id_(std::move(id)) {
    watch_->add(this, [this](rank_standing& s) { describe(s); });
  }

  mpi_queue(const mpi_queue&) = delete;
  mpi_queue& operator=(const mpi_queue&) = delete;
  ~mpi_queue() {
    watch_->remove(this);
    for (auto* queue : {&collectives_, &messages_})
      for (const auto& op : *queue)
        if (!op->withdraw())
          new std::shared_ptr<mpi_operation>(op);  // a failed group: MPI may still write there
  }

  const boost::mpi::communicator& data() const { return channels_.data; }
  const std::shared_ptr<mpi_watch>& watch() const { return watch_; }
  const std::string& id() const { return id_; }
  const std::vector<int>& members() const { return channels_.members; }

  std::shared_ptr<mpi_operation> post(operation o) {
    const bool message = is_message(o.kind);
    auto op = std::make_shared<mpi_operation>(std::move(o), channels_, message ? 0 : number_);
    if (const auto failed = failure(*op)) std::rethrow_exception(failed);
    number_ += !message;
    (message ? messages_ : collectives_).push_back(op);
    last_ = op;
    progress();
    return op;
  }

  void progress() {
    while (!collectives_.empty()) {
      const auto first = collectives_.front();
      first->advance();
      if (!first->over()) break;
      if (!first->failure.empty()) watch_->give_up(first->failure);
      collectives_.pop_front();
    }
    std::erase_if(messages_, [](const auto& m) { return m->advance(), m->over(); });
    watch_->progress();
  }
  void wait(const mpi_operation& op, std::chrono::milliseconds limit) {
    const auto deadline = std::chrono::steady_clock::now() +
                          std::min<std::chrono::milliseconds>(limit, std::chrono::hours(24 * 365));
    waits_ = &op;
    for (int idle = 0; progress(), !op.over() && !watch_->verdict(); ++idle) {
      if (idle > 1000) std::this_thread::yield();
      if (idle % 64 == 0 && std::chrono::steady_clock::now() > deadline)
        watch_->report_late(wait_of(op), limit);
    }
    waits_ = nullptr;
  }

  /// Of an operation that is not over: the verdict.
  std::exception_ptr failure(const mpi_operation& op) const {
    if (op.over() && op.failure.empty()) return nullptr;
    if (!watch_->verdict()) return nullptr;
    watch_verdict v = *watch_->verdict();
    if (v.text.find(op.what().text()) == std::string::npos)
      v.text += "; rank " + std::to_string(watch_->rank()) + " is in " + op.doing();
    try {
      throw_verdict(v);
    } catch (...) {
      return std::current_exception();
    }
  }

 private:
  rank_wait wait_of(const mpi_operation& op) const {
    if (is_message(op.what().kind))
      return {id_, rank_wait::message, {members()[static_cast<std::size_t>(op.what().root)]}, op.doing()};
    return {id_, static_cast<std::int64_t>(op.number()), members(), op.doing()};
  }
  void describe(rank_standing& s) const {
    s.posted[id_] = static_cast<std::int64_t>(number_);
    if (waits_) s.waits = wait_of(*waits_);
    if (last_) s.last = last_->doing();
  }

  mpi_channels channels_;
  std::shared_ptr<mpi_watch> watch_;
  std::string id_;
  std::deque<std::shared_ptr<mpi_operation>> collectives_, messages_;
  std::shared_ptr<mpi_operation> last_;
  const mpi_operation* waits_ = nullptr;  // that this rank waits for
  std::uint64_t number_ = 0;
};

class mpi_state : public work::state {
 public:
  mpi_state(std::shared_ptr<mpi_queue> q, std::shared_ptr<mpi_operation> o)
      : queue_(std::move(q)), operation_(std::move(o)) {}

  bool poll() override {
    queue_->progress();
    return operation_->over() || queue_->watch()->verdict();
  }
  void wait(std::chrono::milliseconds limit) override { queue_->wait(*operation_, limit); }
  std::exception_ptr failure() const override { return queue_->failure(*operation_); }

 private:
  std::shared_ptr<mpi_queue> queue_;
  std::shared_ptr<mpi_operation> operation_;
};

}  // namespace detail

class mpi_communicator : public communicator {
 public:
  /// Of all ranks that `world` has.
  explicit mpi_communicator(const boost::mpi::communicator& world)
      : mpi_communicator(world, std::make_shared<detail::mpi_watch>(world), "world", all_of(world)) {}

  const char* name() const override { return "mpi"; }
  int rank() const override { return queue_->data().rank(); }
  int size() const override { return queue_->data().size(); }

  std::shared_ptr<communicator> split(int color, int key, comm_options o) override {
    barrier(std::move(o)).wait();  // what was called before is over, and all ranks mean to split
    const boost::mpi::communicator part = queue_->data().split(color < 0 ? MPI_UNDEFINED : color, key);
    const int number = splits_++;
    if (color < 0) return nullptr;
    std::vector<int> own = all_of(part), before(own.size()), in_world;
    MPI_Group from = MPI_GROUP_NULL, to = MPI_GROUP_NULL;
    MPI_Comm_group(part, &from);
    MPI_Comm_group(queue_->data(), &to);
    MPI_Group_translate_ranks(from, static_cast<int>(own.size()), own.data(), to, before.data());
    MPI_Group_free(&from);
    MPI_Group_free(&to);
    for (const int r : before) in_world.push_back(queue_->members()[static_cast<std::size_t>(r)]);
    return std::shared_ptr<communicator>(new mpi_communicator(
        part, queue_->watch(), queue_->id() + "/split" + std::to_string(number) + "." + std::to_string(color),
        std::move(in_world)));
  }

  /// Ranks that wait or poll learn it at once; run_under_mpirun() ends those that do not.
  void abort(const std::string& reason) override {
    queue_->watch()->give_up("weft: rank " + std::to_string(queue_->watch()->rank()) + " gave up: " + reason);
  }

  /// Waits until all ranks have called it, and makes `code` the job's: that of a rank at fault. False after
  /// `limit`.
  bool end_together(int& code, std::chrono::milliseconds limit) {
    return queue_->watch()->end_together(code, limit);
  }

 protected:
  work start(operation o) override {
    const auto limit = o.timeout;
    return work(std::make_shared<detail::mpi_state>(queue_, queue_->post(std::move(o))), limit);
  }

 private:
  mpi_communicator(const boost::mpi::communicator& c, std::shared_ptr<detail::mpi_watch> watch,
                   std::string id, std::vector<int> members)
      : queue_(std::make_shared<detail::mpi_queue>(c, std::move(watch), std::move(id), std::move(members))) {}
  static std::vector<int> all_of(const boost::mpi::communicator& c) {
    std::vector<int> ranks;
    for (int r = 0; r < c.size(); ++r) ranks.push_back(r);
    return ranks;
  }

  std::shared_ptr<detail::mpi_queue> queue_;
  int splits_ = 0;
};

}  // namespace weft
