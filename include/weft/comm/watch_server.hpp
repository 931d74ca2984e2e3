// SPDX-License-Identifier: MIT
// Failure detection, the server: a thread of rank 0 that receives the reports of all ranks and sends them the
// verdict.
//
// It listens until all ranks have connected. A rank authenticates by the secret that rank 0 has put into the
// store, with HMAC-SHA256 over a nonce.
#pragma once

#include <atomic>
#include <list>
#include <set>
#include <thread>

#include <weft/comm/handshake.hpp>
#include <weft/comm/standing_frames.hpp>
#include <weft/comm/watch_judge.hpp>
#include <weft/comm/watch_socket.hpp>

namespace weft::detail {

enum class watch_report : std::uint8_t { come, leave, give_up, late, lost, standing };
enum class watch_notice : std::uint8_t { nonce, all_there, where_are_you, verdict, farewell };

/// The proof of `rank` that it knows the secret of its job.
inline std::string watch_proof(const std::string& secret, const std::string& nonce, int rank) {
  return proof(secret, "rank " + std::to_string(rank) + " ", nonce);
}

class watch_server {
 public:
  using clock = std::chrono::steady_clock;
  using milliseconds = std::chrono::milliseconds;

  watch_server(const std::string& host, std::string secret, int ranks);
  watch_server(const watch_server&) = delete;
  watch_server& operator=(const watch_server&) = delete;
  /// Waits at most a few seconds until the other ranks have left, so that they learn why a run failed.
  ~watch_server() {
    ending_ = true;
    wake_.now();
    thread_.join();
  }

  int port() const { return port_; }

 private:
  static constexpr milliseconds linger{3000};  // less than launchers give ranks after a failure
  static constexpr milliseconds handshake{10'000}, crowded{1000};
  static constexpr std::size_t most_strangers = 64;

  struct peer {
    frame_socket socket;
    std::string nonce;
    clock::time_point since;
    int rank = -1;  // negative until authenticated
    bool open = true;
  };

  void serve();

  void wait_for_news();
  bool listens() const { return listener_ && clock::now() >= full_until_ && strangers() < most_strangers; }
  std::size_t strangers() const;

  void accept();
  /// Drops connections that have not authenticated in time; the time is short while others wait.
  void drop_strangers();

  void hear(peer& p);

  /// False if it is not a valid report of a known rank.
  bool obey(peer& p, frame_reader in);

  /// Sends each notice once; ranks that connect late also receive the verdict.
  void tell();
  void tell_all(const std::string& frame) {
    for (peer& p : peers_)
      if (p.rank >= 0) p.socket.send(frame);
  }
  static frame_writer notice(watch_notice what) {
    return frame_writer().byte(static_cast<std::uint8_t>(what));
  }

  std::string secret_;
  watch_judge judge_;
  int port_ = 0;
  descriptor listener_;
  wake_up wake_;
  std::list<peer> peers_;
  std::set<int> told_;
  bool asked_ = false;  // whether ranks have been asked for their standing; those that connect later are, too
  clock::time_point full_until_{};
  std::atomic<bool> ending_ = false;
  std::thread thread_;
};

}  // namespace weft::detail

#ifndef WEFT_COMPILED
#include <weft/comm/impl/watch_server.ipp>
#endif
