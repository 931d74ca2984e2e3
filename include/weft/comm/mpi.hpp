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
#include <cstdio>
#include <deque>
#include <limits>
#include <thread>

#include <weft/comm/communicator.hpp>
#include <weft/comm/reduce.hpp>

namespace weft {

namespace detail {

/// One operation on its way through its stages.
class mpi_operation {
 public:
  mpi_operation(operation o, MPI_Comm data, MPI_Comm control, std::uint64_t number)
      : what_(std::move(o)), data_(data), control_(control), number_(number) {
    MPI_Comm_rank(data, &rank_);
    MPI_Comm_size(data, &ranks_);
  }
  mpi_operation(const mpi_operation&) = delete;
  mpi_operation& operator=(const mpi_operation&) = delete;

  bool over() const { return stage_ == stage::over; }
  std::exception_ptr failure;

  /// Moves on as far as it goes without waiting.
  void advance() {
    while (stage_ != stage::over && requests_done()) next_stage();
  }

  /// Gives up messages that nobody will answer; false if MPI still works in our buffers.
  bool withdraw() {
    if (stage_ != stage::agree && !is_message(what_.kind)) return stage_ == stage::over || stage_ == stage::start;
    for (MPI_Request& r : requests_)
      if (r != MPI_REQUEST_NULL) {
        MPI_Cancel(&r);
        MPI_Request_free(&r);
      }
    return true;
  }

  /// What a rank that waited too long knows.
  std::string late_report(std::chrono::milliseconds limit) const {
    std::string t = "weft: rank " + std::to_string(rank_) + " waited " + std::to_string(limit.count()) + " ms in #" +
                    std::to_string(number_) + " " + what_.text();
    if (stage_ != stage::agree) return t + "; all ranks are there, the data is not";
    t += "; not there:";
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      int there = 0;
      MPI_Request_get_status(requests_[static_cast<std::size_t>(2 * r)], &there, MPI_STATUS_IGNORE);
      if (!there) t += " rank " + std::to_string(r);
    }
    return t;
  }

 private:
  enum class stage { start, agree, move, collect, over };

  bool requests_done() {
    int done = 1;
    if (!requests_.empty()) MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE);
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
        if (const std::string wrong = disagreement({meant_.begin(), meant_.end()}, number_); !wrong.empty()) {
          failure = std::make_exception_ptr(comm_error(wrong));
          stage_ = stage::over;
          return;
        }
        begin_move();
        break;
      case stage::move:
        if (is_reduction(what_.kind)) return begin_collect();
        stage_ = stage::over;
        break;
      default: stage_ = stage::over;
    }
  }

  static constexpr std::size_t text_bytes = 512;
  struct fingerprint {
    char text[text_bytes];
    operator std::string() const { return text; }
  };

  /// Each rank tells each other rank which operation it means.
  void begin_agreement() {
    const auto n = static_cast<std::size_t>(ranks_);
    meant_.assign(n, {});
    fingerprint& mine = meant_[static_cast<std::size_t>(rank_)];
    const std::string text = what_.text();
    std::copy_n(text.begin(), std::min(text.size(), text_bytes - 1), mine.text);
    requests_.assign(2 * n, MPI_REQUEST_NULL);
    for (int r = 0; r < ranks_; ++r) {
      if (r == rank_) continue;
      const auto at = static_cast<std::size_t>(r);
      MPI_Irecv(&meant_[at], sizeof(fingerprint), MPI_BYTE, r, 0, control_, &requests_[2 * at]);
      MPI_Isend(&mine, sizeof(fingerprint), MPI_BYTE, r, 0, control_, &requests_[2 * at + 1]);
    }
    stage_ = stage::agree;
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
      case collective::all_reduce: case collective::reduce: sent_ = parts_of(even_parts(what_.out.count, ranks_)); [[fallthrough]];
      case collective::reduce_scatter: {
        const index_t mine = sent_.count[own];
        received_ = parts_of(rank_counts(static_cast<std::size_t>(ranks_), mine));
        gathered_.resize(static_cast<std::size_t>(mine * ranks_ * size_of(what_.type())));
        MPI_Ialltoallv(in, sent_.count.data(), sent_.at.data(), type, gathered_.data(), received_.count.data(),
                       received_.at.data(), type, data_, r);
        break;
      }
      case collective::broadcast: MPI_Ibcast(out, as_int(what_.out.count), type, what_.root, data_, r); break;
      case collective::all_gather:
        MPI_Iallgatherv(in, as_int(what_.in.count), type, out, received_.count.data(), received_.at.data(), type, data_, r);
        break;
      case collective::gather:
        MPI_Igatherv(in, as_int(what_.in.count), type, out, received_.count.data(), received_.at.data(), type, what_.root, data_, r);
        break;
      case collective::scatter:
        MPI_Iscatterv(in, sent_.count.data(), sent_.at.data(), type, out, as_int(what_.out.count), type, what_.root, data_, r);
        break;
      case collective::all_to_all:
        MPI_Ialltoallv(in, sent_.count.data(), sent_.at.data(), type, out, received_.count.data(), received_.at.data(), type, data_, r);
        break;
      case collective::send: MPI_Isend(in, as_int(what_.in.count), type, what_.root, what_.tag, data_, r); break;
      case collective::receive: MPI_Irecv(out, as_int(what_.out.count), type, what_.root, what_.tag, data_, r); break;
      default: break;  // a barrier: all have agreed
    }
  }

  /// The parts of all ranks are here: adds them up, and hands the sums on.
  void begin_collect() {
    const index_t mine = sent_.count[static_cast<std::size_t>(rank_)];
    visit_type(what_.type(), [&]<class T>(T) {
      std::vector<const void*> sources;
      for (int r = 0; r < ranks_; ++r) sources.push_back(gathered_.data() + static_cast<std::size_t>(r * mine) * sizeof(T));
      const std::unique_ptr<T[]> sums(new T[static_cast<std::size_t>(mine)]);
      reduce_ranks<T>(sources, 0, mine, what_.op, sums.get());
      char* to = what_.kind == collective::reduce_scatter ? static_cast<char*>(what_.out.data) : gathered_.data();
      if (mine) std::memcpy(to, sums.get(), static_cast<std::size_t>(mine) * sizeof(T));
    });
    stage_ = stage::collect;
    requests_.assign(1, MPI_REQUEST_NULL);
    if (what_.kind == collective::all_reduce)
      MPI_Iallgatherv(gathered_.data(), as_int(mine), element(), what_.out.data, sent_.count.data(), sent_.at.data(), element(),
                      data_, requests_.data());
    else if (what_.kind == collective::reduce)
      MPI_Igatherv(gathered_.data(), as_int(mine), element(), what_.out.data, sent_.count.data(), sent_.at.data(), element(),
                   what_.root, data_, requests_.data());
  }

  operation what_;
  MPI_Comm data_, control_;
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
  explicit mpi_queue(boost::mpi::communicator c) : data_(c, boost::mpi::comm_duplicate), control_(c, boost::mpi::comm_duplicate) {}

  mpi_queue(const mpi_queue&) = delete;
  mpi_queue& operator=(const mpi_queue&) = delete;
  ~mpi_queue() {
    for (auto* queue : {&collectives_, &messages_})
      for (const auto& op : *queue)
        if (!op->withdraw()) new std::shared_ptr<mpi_operation>(op);  // a failed group: MPI may still write there
  }

  const boost::mpi::communicator& data() const { return data_; }

  std::shared_ptr<mpi_operation> post(operation o) {
    if (failure_) std::rethrow_exception(failure_);
    const bool message = is_message(o.kind);
    auto op = std::make_shared<mpi_operation>(std::move(o), data_, control_, message ? 0 : number_++);
    (message ? messages_ : collectives_).push_back(op);
    progress();
    return op;
  }

  void progress() {
    while (!collectives_.empty()) {
      const auto first = collectives_.front();
      first->advance();
      if (!first->over()) break;
      if (first->failure && !failure_) failure_ = first->failure;
      collectives_.pop_front();
    }
    std::erase_if(messages_, [](const auto& m) { return m->advance(), m->over(); });
  }

  void fail(std::exception_ptr e) {
    if (!failure_) failure_ = std::move(e);
  }
  std::exception_ptr failure() const { return failure_; }

 private:
  boost::mpi::communicator data_, control_;
  std::deque<std::shared_ptr<mpi_operation>> collectives_, messages_;
  std::uint64_t number_ = 0;
  std::exception_ptr failure_;
};

class mpi_state : public work::state {
 public:
  mpi_state(std::shared_ptr<mpi_queue> q, std::shared_ptr<mpi_operation> o) : queue_(std::move(q)), operation_(std::move(o)) {}

  bool poll() override {
    queue_->progress();
    return operation_->over() || queue_->failure();
  }
  void wait(std::chrono::milliseconds limit) override {
    const auto deadline = std::chrono::steady_clock::now() + limit;
    for (int idle = 0; !poll(); ++idle) {
      if (idle > 1000) std::this_thread::yield();
      if (idle % 64 == 0 && std::chrono::steady_clock::now() > deadline)
        queue_->fail(std::make_exception_ptr(timeout_error(operation_->late_report(limit))));
    }
  }
  std::exception_ptr failure() const override {
    return operation_->over() && !operation_->failure ? nullptr : operation_->failure ? operation_->failure : queue_->failure();
  }

 private:
  std::shared_ptr<mpi_queue> queue_;
  std::shared_ptr<mpi_operation> operation_;
};

}  // namespace detail

class mpi_communicator : public communicator {
 public:
  explicit mpi_communicator(const boost::mpi::communicator& c) : queue_(std::make_shared<detail::mpi_queue>(c)) {}

  const char* name() const override { return "mpi"; }
  int rank() const override { return queue_->data().rank(); }
  int size() const override { return queue_->data().size(); }

  std::shared_ptr<communicator> split(int color, int key, comm_options o) override {
    barrier(std::move(o)).wait();  // what was called before is over, and all ranks mean to split
    const boost::mpi::communicator part = queue_->data().split(color < 0 ? MPI_UNDEFINED : color, key);
    return color < 0 ? nullptr : std::make_shared<mpi_communicator>(part);
  }

  /// Ends all processes of the job: MPI has no other way to reach ranks that do not call it.
  void abort(const std::string& reason) override {
    std::fprintf(stderr, "weft: rank %d gave up: %s\n", rank(), reason.c_str());
    boost::mpi::environment::abort(1);
  }

 protected:
  work start(operation o) override {
    const auto limit = o.timeout;
    return work(std::make_shared<detail::mpi_state>(queue_, queue_->post(std::move(o))), limit);
  }

 private:
  std::shared_ptr<detail::mpi_queue> queue_;
};

}  // namespace weft
