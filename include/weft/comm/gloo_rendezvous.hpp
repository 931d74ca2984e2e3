// SPDX-License-Identifier: MIT
// The store through which the connections of Gloo find each other.
#pragma once

#include <gloo/rendezvous/store.h>

#include <weft/base/running_clock.hpp>
#include <weft/comm/store.hpp>
#include <weft/comm/watch.hpp>

namespace weft::detail {

/// Adapts a store to the interface of Gloo's rendezvous. Waiting ends when the watch has a verdict.
class gloo_rendezvous : public ::gloo::rendezvous::Store {
 public:
  gloo_rendezvous(store& of, const rank_watch& watch, std::chrono::milliseconds limit)
      : of_(of), watch_(watch), limit_(limit) {}
  void set(const std::string& key, const std::vector<char>& data) override {
    of_.set(key, {data.begin(), data.end()});
  }
  std::vector<char> get(const std::string& key) override {
    wait({key});
    const std::string value = of_.get(key, limit_);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }
  void wait(const std::vector<std::string>& keys) override {
    running_clock ran;
    for (std::chrono::milliseconds pause{1}; !of_.check(keys);
         pause = std::min(2 * pause, running_clock::between_calls)) {
      if (const auto v = watch_.verdict()) throw_verdict(*v);
      if (ran.elapsed() >= limit_)
        return of_.wait(keys, std::chrono::milliseconds(0));  // reports the missing keys
      std::this_thread::sleep_for(pause);
    }
  }

 private:
  store& of_;
  const rank_watch& watch_;
  std::chrono::milliseconds limit_;
};

}  // namespace weft::detail
