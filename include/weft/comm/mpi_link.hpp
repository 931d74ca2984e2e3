// SPDX-License-Identifier: MIT
// Non-blocking messages between the processes of mpirun: frames, which are short and arrive in order, and
// data.
//
// MPI's collectives and its constructors of communicators are not used after the start, because a rank that
// is stopped in the middle of one holds the others in a call that does not return.
#pragma once

#include <mpi.h>

#include <boost/mpi/communicator.hpp>

#include <algorithm>
#include <array>
#include <deque>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <weft/comm/fingerprint.hpp>
#include <weft/comm/frames.hpp>
#include <weft/comm/transfers.hpp>

namespace weft::detail {

/// A rank's description of an operation, sent before its data.
struct mpi_header {
  fingerprint meant;
  int tag = 0;  // of the data
};

/// The operations whose headers are in order: the collectives of a group, or its messages of one tag; and the
/// rank that sends them.
struct mpi_stream {
  static constexpr int collectives = -1;

  std::uint64_t group = 0;
  int tag = collectives;
  int from = 0;

  auto operator<=>(const mpi_stream&) const = default;
};

class mpi_link {
 public:
  enum class kind { header, where_are_you, standing, verdict };

  explicit mpi_link(const boost::mpi::communicator& world)
      : frames_(world, boost::mpi::comm_duplicate),
        data_(world, boost::mpi::comm_duplicate),
        tags_(static_cast<std::size_t>(world.size())),
        arriving_(static_cast<std::size_t>(world.size())) {
    int known = 0;
    void* highest = nullptr;
    MPI_Comm_get_attr(data_, MPI_TAG_UB, &highest, &known);
    if (known) highest_tag_ = *static_cast<int*>(highest);
  }
  mpi_link(const mpi_link&) = delete;
  mpi_link& operator=(const mpi_link&) = delete;
  ~mpi_link() {
    forget_sent();  // MPI may still read unsent frames and write to incoming ones
    if (!leaving_.empty()) new std::list<frame>(std::move(leaving_));
    if (waiting_ > 0) new std::vector<std::deque<frame>>(std::move(arriving_));
  }

  int rank() const { return frames_.rank(); }
  int size() const { return frames_.size(); }
  /// A number for the groups of a split, unique among all ranks.
  std::uint64_t new_group() { return static_cast<std::uint64_t>(rank() + 1) << 32 | ++groups_; }

  void send(int to, kind what, std::string bytes) {
    frame& f = leaving_.emplace_back(frame{what, std::move(bytes), MPI_REQUEST_NULL});
    MPI_Isend(f.bytes.data(), static_cast<int>(f.bytes.size()), MPI_BYTE, to, static_cast<int>(what), frames_,
              &f.request);
  }
  /// Stores the headers that have arrived and calls f(from, kind, frame_reader) with every other frame; those
  /// of one rank are in order.
  template <class F>
  void receive(F f) {
    accept();
    for (int from = 0; waiting_ > 0 && from < size(); ++from) {
      auto& queue = arriving_[static_cast<std::size_t>(from)];
      for (; !queue.empty() && is_over(queue.front().request); --waiting_) {
        const kind what = queue.front().what;
        frame_reader in(std::move(queue.front().bytes));
        queue.pop_front();
        if (what == kind::header) store(from, in);
        else f(from, what, std::move(in));
      }
    }
    forget_sent();
  }

  /// Sends `meant` to a rank, and the tag with which data must follow, which is returned.
  int send_header(int to, std::uint64_t group, int stream_tag, const fingerprint& meant) {
    int& next = tags_[static_cast<std::size_t>(to)];
    const int tag = next;
    next = tag == highest_tag_ ? 0 : tag + 1;
    send(to, kind::header,
         frame_writer()
             .number(static_cast<std::int64_t>(group))
             .number(stream_tag)
             .number(tag)
             .number(meant.count)
             .number(meant.type)
             .text(meant.words())
             .take());
    return tag;
  }
  /// The next header of a stream, if it has arrived.
  std::optional<mpi_header> take_header(const mpi_stream& s) {
    const auto found = headers_.find(s);
    if (found == headers_.end()) return {};
    mpi_header first = std::move(found->second.front());
    found->second.pop_front();
    if (found->second.empty()) headers_.erase(found);
    return first;
  }

  /// Starts to send or receive; large transfers in several pieces, which arrive in order.
  void start(const transfer& t, int tag, std::vector<MPI_Request>& requests) const {
    constexpr std::size_t most = 1 << 30;  // MPI counts in int
    for (std::size_t at = 0; at < t.bytes; at += most) {
      char* const data = static_cast<char*>(t.data) + at;
      const int bytes = static_cast<int>(std::min(most, t.bytes - at));
      MPI_Request& r = requests.emplace_back(MPI_REQUEST_NULL);
      if (t.sends) MPI_Isend(data, bytes, MPI_BYTE, t.peer, tag, data_, &r);
      else MPI_Irecv(data, bytes, MPI_BYTE, t.peer, tag, data_, &r);
    }
  }

 private:
  struct frame {
    kind what;
    std::string bytes;
    MPI_Request request;
  };

  static bool is_over(MPI_Request& r) {
    int over = 0;
    MPI_Test(&r, &over, MPI_STATUS_IGNORE);
    return over != 0;
  }
  void forget_sent() {
    std::erase_if(leaving_, [](frame& f) { return is_over(f.request); });
  }

  void accept() {
    for (;;) {
      int there = 0, size = 0;
      MPI_Message message;
      MPI_Status status;
      MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, frames_, &there, &message, &status);
      if (!there) return;
      MPI_Get_count(&status, MPI_BYTE, &size);
      frame& f = arriving_[static_cast<std::size_t>(status.MPI_SOURCE)].emplace_back(
          frame{static_cast<kind>(status.MPI_TAG), std::string(static_cast<std::size_t>(size), '\0'),
                MPI_REQUEST_NULL});
      MPI_Imrecv(f.bytes.data(), size, MPI_BYTE, &message, &f.request);
      ++waiting_;
    }
  }
  void store(int from, frame_reader& in) {
    mpi_stream s{static_cast<std::uint64_t>(in.number()), static_cast<int>(in.number()), from};
    mpi_header h;
    h.tag = static_cast<int>(in.number());
    const std::int64_t count = in.number();
    const auto type = static_cast<std::int32_t>(in.number());
    h.meant = fingerprint(count, type, in.text());
    headers_[s].push_back(std::move(h));
  }

  boost::mpi::communicator frames_, data_;
  int highest_tag_ = 32767;  // the lower bound guaranteed by MPI
  std::uint32_t groups_ = 0;
  std::vector<int> tags_;                    // tag of the next data, by rank
  std::vector<std::deque<frame>> arriving_;  // by rank
  int waiting_ = 0;                          // number of frames in arriving_
  std::list<frame> leaving_;
  std::map<mpi_stream, std::deque<mpi_header>> headers_;  // not taken yet
};

}  // namespace weft::detail
