// SPDX-License-Identifier: MIT
// Definitions of <weft/comm/store_table.hpp>.
#pragma once

#include <weft/base/config.hpp>
#include <weft/comm/store_table.hpp>

namespace weft {
namespace detail {

WEFT_DEFINE std::vector<store_reply> store_table::handle(std::uint64_t client, std::string request) {
  std::vector<store_reply> replies;
  withdraw(client, replies);
  std::optional<store_request> q = parse_store_request(std::move(request));
  if (!q) {
    replies.push_back({client, std::nullopt});
    return replies;
  }
  try {
    perform(client, *q, replies);
  } catch (const value_error& e) {
    replies.push_back(store_answer(client, q->number, store_status::wrong, e.what()));
  }
  return replies;
}

WEFT_DEFINE std::vector<store_reply> store_table::refuse(std::uint64_t client, std::int64_t number,
                                                         const std::string& why) {
  std::vector<store_reply> replies;
  withdraw(client, replies);
  replies.push_back(store_answer(client, number, store_status::wrong, why));
  return replies;
}

WEFT_DEFINE void store_table::perform(std::uint64_t client, store_request& q,
                                      std::vector<store_reply>& replies) {
  using enum store_operation;
  const auto answer = [&](const std::string& value) {
    replies.push_back(store_answer(client, q.number, store_status::ok, value));
  };
  switch (q.what) {
    case set:
      put(q, std::move(q.texts[1]));
      answer("");
      wake({false, q.texts[0]}, replies);
      return;
    case add: {
      const auto found = keys_.find(q.texts[0]);
      const std::string sum =
          std::to_string(stored_sum(q.texts[0], found == keys_.end() ? "0" : found->second->bytes, q.amount));
      put(q, sum);
      answer(sum);
      wake({false, q.texts[0]}, replies);
      return;
    }
    case compare_set: compare_and_set(client, q, replies); return;
    case push: {
      shared_value value = stored(q, std::move(q.texts[1]), 0);  // created first: no queue is empty
      queues_[q.texts[0]].push_back(std::move(value));
      answer("");
      wake({true, q.texts[0]}, replies);
      return;
    }
    case get:
    case wait:
    case pop: wait_for(client, q, replies); return;
    case delete_key: answer(keys_.erase(q.texts[0]) ? "1" : "0"); return;
    case check: answer(missing_from(q, 0) == q.texts.size() ? "1" : "0"); return;
    case num_keys: answer(std::to_string(keys_.size())); return;
    case withdraw: return;
  }
}

WEFT_DEFINE void store_table::compare_and_set(std::uint64_t client, store_request& q,
                                              std::vector<store_reply>& replies) {
  const auto found = keys_.find(q.texts[0]);
  const std::string& expected = q.texts[1];
  if (found == keys_.end() ? !expected.empty() : found->second->bytes != expected) {
    if (found == keys_.end()) replies.push_back(store_answer(client, q.number, store_status::absent, ""));
    else replies.push_back(store_answer(client, q.number, found->second));
    return;
  }
  put(q, std::move(q.texts[2]));
  replies.push_back(store_answer(client, q.number, keys_.at(q.texts[0])));
  wake({false, q.texts[0]}, replies);
}

WEFT_DEFINE shared_value store_table::stored(const store_request& q, std::string bytes,
                                             std::size_t given_back) {
  const std::size_t n = q.texts[0].size() + bytes.size() + overhead;
  if (!memory_.fits(n, given_back))
    throw value_error(std::string("weft: store: ") + name_of(q.what) + " " + shown(q.texts[0]) + ": " +
                      memory_.refusal(n));
  return std::make_shared<const stored_value>(stored_value{std::move(bytes), charge(memory_, n)});
}

WEFT_DEFINE void store_table::put(const store_request& q, std::string bytes) {
  const auto found = keys_.find(q.texts[0]);
  const bool goes =
      found != keys_.end() && found->second.use_count() == 1;  // and the value is not being sent to a client
  shared_value value = stored(q, std::move(bytes), goes ? found->second->held.bytes() : 0);
  if (found == keys_.end()) keys_.emplace(q.texts[0], std::move(value));
  else found->second = std::move(value);
}

WEFT_DEFINE std::size_t store_table::missing_from(const store_request& q, std::size_t from) const {
  const std::size_t n = q.texts.size();
  for (std::size_t i = 0; i < n; ++i)
    if (const std::size_t k = (from + i) % n; !keys_.contains(q.texts[k])) return k;
  return n;
}

WEFT_DEFINE bool store_table::answered(std::uint64_t client, const store_request& q, std::size_t& watched,
                                       std::vector<store_reply>& replies) {
  if (q.what == store_operation::pop) {
    const auto found = queues_.find(q.texts[0]);
    if (found == queues_.end()) return false;
    replies.push_back(store_answer(client, q.number, std::move(found->second.front())));
    found->second.pop_front();
    if (found->second.empty()) queues_.erase(found);
    return true;
  }
  const std::size_t missing = missing_from(q, watched);
  if (missing < q.texts.size()) return watched = missing, false;
  if (q.what == store_operation::get) replies.push_back(store_answer(client, q.number, keys_.at(q.texts[0])));
  else replies.push_back(store_answer(client, q.number, store_status::ok, ""));
  return true;
}

WEFT_DEFINE void store_table::wait_for(std::uint64_t client, store_request& q,
                                       std::vector<store_reply>& replies) {
  std::size_t watched = 0, n = 0;
  if (answered(client, q, watched, replies)) return;
  for (const std::string& key : q.texts) n += key.size() + overhead;
  if (!waiting_memory_.fits(n))
    throw value_error(std::string("weft: store: ") + name_of(q.what) + " " + shown(q.texts[0]) + ": " +
                      waiting_memory_.refusal(n));
  waiter w{++tickets_, std::move(q), charge(waiting_memory_, n), watched};
  const auto at = waiting_.emplace(client, std::move(w)).first;
  try {
    watchers_[name_of_watched(at->second)].emplace(at->second.ticket, client);
  } catch (const std::bad_alloc&) {
    waiting_.erase(at);
    throw;
  }
}

WEFT_DEFINE void store_table::wake(const name& come, std::vector<store_reply>& replies) {
  const auto found = watchers_.find(come);
  if (found == watchers_.end()) return;
  const std::set<std::pair<std::uint64_t, std::uint64_t>> woken = std::move(found->second);
  watchers_.erase(found);
  for (const auto& [ticket, client] : woken) {
    const auto at = waiting_.find(client);
    if (answered(client, at->second.request, at->second.watched, replies)) waiting_.erase(at);
    else watchers_[name_of_watched(at->second)].emplace(ticket, client);
  }
}

WEFT_DEFINE void store_table::withdraw(std::uint64_t client, std::vector<store_reply>& replies) {
  const auto at = waiting_.find(client);
  if (at == waiting_.end()) return;
  const auto watchers = watchers_.find(name_of_watched(at->second));
  if (watchers != watchers_.end()) {  // unless there was no memory to go on waiting
    watchers->second.erase({at->second.ticket, client});
    if (watchers->second.empty()) watchers_.erase(watchers);
  }
  replies.push_back(store_answer(client, at->second.request.number, store_status::late, ""));
  waiting_.erase(at);
}

}  // namespace detail
}  // namespace weft
