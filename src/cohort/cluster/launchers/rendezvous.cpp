// SPDX-License-Identifier: Apache-2.0
#include "cohort/cluster/launchers/rendezvous.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "cohort/cluster/address.h"
#include "cohort/cluster/launchers/own_address.h"
#include "cohort/collective/mpi_group.h"
#include "cohort/core/error.h"
#include "cohort/core/log.h"
#include "cohort/core/mutex.h"
#include "cohort/core/start_thread.h"

namespace cohort::cluster {
namespace {

constexpr auto kStorePoll = std::chrono::milliseconds(5);
constexpr std::size_t kNamedMax = 8;

std::string joined(const std::vector<std::string>& lines, const char* separator = "\n") {
  std::string text;
  for (const std::string& line : lines) text.append(text.empty() ? "" : separator).append(line);
  return text;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    lines.push_back(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// The state of a meeting, whose thread may outlive the caller. Thread-safe.
class Progress {
 public:
  void connected() {
    const Lock lock(mutex_);
    is_connected_ = true;
  }
  void lacks(std::string who) {
    const Lock lock(mutex_);
    missing_ = std::move(who);
  }
  // The addresses are known, but perhaps not yet to all others.
  void agree(MetProcesses met) {
    const Lock lock(mutex_);
    met_ = std::move(met);
  }
  void end() {
    const Lock lock(mutex_);
    is_over_ = true;
    changed_.notify_all();
  }
  void fail(Error error) {
    const Lock lock(mutex_);
    if (!met_) error_ = std::move(error);  // else the store has ended after the meeting
    is_over_ = true;
    changed_.notify_all();
  }
  MetProcesses wait(const Newcomer& me, Deadline deadline) {
    const Lock lock(mutex_);
    changed_.wait(mutex_, deadline, [&]() COHORT_REQUIRES(mutex_) { return is_over_; });
    if (error_) throw *error_;
    if (met_) return *met_;
    const std::string where = me.place.host + ":" + std::to_string(me.place.port);
    if (is_connected_)
      internal::throw_error(ErrorCode::deadline_exceeded, "[cluster.", me.launcher->name,
                            "] expected all ", me.size, " processes to meet in the store at ",
                            where, " in time, got none from ", missing_,
                            "; see whether they run, and have the same program and variables");
    internal::throw_error(ErrorCode::deadline_exceeded, "[cluster.", me.launcher->name,
                          "] expected a store of LibTorch ", torch_version(), " at ", where,
                          ", got no answer in time; ", me.launcher->remedy);
  }

 private:
  Mutex mutex_;
  Condition changed_;
  bool is_connected_ COHORT_GUARDED_BY(mutex_) = false;
  bool is_over_ COHORT_GUARDED_BY(mutex_) = false;
  std::string missing_ COHORT_GUARDED_BY(mutex_) = "rank 0";
  std::optional<MetProcesses> met_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> error_ COHORT_GUARDED_BY(mutex_);
};

// One process in the store.
class StoreMeeting {
 public:
  StoreMeeting(Newcomer me, std::string address, Deadline deadline, Progress& progress)
      : me_(std::move(me)),
        address_(std::move(address)),
        deadline_(deadline),
        progress_(progress),
        store_(open_tcp_store(me_.place, deadline)) {}

  void meet() {
    rank_ = me_.rank ? *me_.rank : given_rank();
    set("address", rank_, address_);
    find("address", rank_);
    progress_.connected();  // it has answered
    rank_ == 0 ? lead() : follow();
    progress_.end();
  }

 private:
  std::int64_t given_rank() {
    const std::string key = me_.prefix + "from" + std::to_string(me_.rank_min);
    const std::int64_t rank = me_.rank_min + store_->count(key) - 1;
    COHORT_CHECK(rank <= me_.rank_max, ErrorCode::failed_precondition, "[cluster.",
                 me_.launcher->name, "] expected ", me_.rank_max - me_.rank_min + 1,
                 " processes of this role, got one more; start as many as the variables say");
    return rank;
  }

  void lead() {
    std::vector<std::string> addresses;
    do {
      addresses = collected();
      set("list", 0, joined(addresses));
    } while (pauses_unless(all_have("seen", joined(addresses))));
    set("final", 0, joined(addresses));
    const std::string agreed = joined(addresses);
    progress_.agree({rank_, std::move(addresses)});
    // Their store has to stay until all know the end, also if this process would end then.
    while (me_.place.opens_it && pauses_unless(all_have("left", agreed))) {
    }
  }

  std::vector<std::string> collected() {
    std::vector<std::string> addresses;
    do {
      addresses.assign(1, address_);
      std::vector<std::int64_t> missing;
      for (std::int64_t rank = 1; rank < me_.size; ++rank) {
        std::optional<std::string> found = find("address", rank);
        if (!found) missing.push_back(rank);
        addresses.push_back(std::move(found).value_or(""));
      }
      if (missing.empty()) break;
      note_missing(missing);
    } while (pauses_unless(false));
    return addresses;
  }

  void note_missing(const std::vector<std::int64_t>& ranks) {
    std::string text = ranks.size() == 1 ? "rank " : "ranks ";
    for (std::size_t i = 0; i < ranks.size() && i < kNamedMax; ++i)
      text.append(i == 0 ? "" : ", ").append(std::to_string(ranks[i]));
    if (ranks.size() > kNamedMax)
      text += " and " + std::to_string(ranks.size() - kNamedMax) + " more";
    progress_.lacks(text);
  }

  void follow() {
    std::string seen;
    while (true) {
      const std::optional<std::string> list = find("list", 0);
      if (list && *list != seen && has_own(*list)) {
        set("seen", rank_, *list);
        seen = *list;
      }
      if (!seen.empty() && find("final", 0) == seen) break;
      pauses_unless(false);
    }
    set("left", rank_, seen);
    progress_.agree({rank_, lines_of(seen)});
  }

  bool has_own(const std::string& list) const {
    const std::vector<std::string> addresses = lines_of(list);
    return std::ssize(addresses) == me_.size &&
           addresses[static_cast<std::size_t>(rank_)] == address_;
  }

  bool all_have(const char* what, const std::string& text) {
    std::vector<std::int64_t> missing;
    for (std::int64_t rank = 1; rank < me_.size; ++rank) {
      if (find(what, rank) != text) missing.push_back(rank);
    }
    if (!missing.empty()) note_missing(missing);
    return missing.empty();
  }

  // Returns whether to try again. The caller of the meeting has given up at the deadline.
  bool pauses_unless(bool is_done) const {
    if (is_done) return false;
    COHORT_CHECK(!deadline_.has_expired(), ErrorCode::deadline_exceeded,
                 "[cluster.rendezvous] expected all processes in time");
    std::this_thread::sleep_for(kStorePoll);
    return true;
  }

  std::string key(const char* what, std::int64_t rank) const {
    return me_.prefix + what + std::to_string(rank);
  }
  void set(const char* what, std::int64_t rank, const std::string& value) {
    store_->set(key(what, rank), value);
  }
  std::optional<std::string> find(const char* what, std::int64_t rank) {
    return store_->find(key(what, rank));
  }

  const Newcomer me_;
  const std::string address_;
  const Deadline deadline_;
  Progress& progress_;
  const std::unique_ptr<KeyStore> store_;
  std::int64_t rank_ = 0;
};

// LibTorch's errors have many lines, and say nothing of versions.
Error store_error(const Newcomer& me, const std::exception& error) {
  const std::string text = error.what();
  return Error(ErrorCode::unavailable,
               std::string("[cluster.") + me.launcher->name + "] expected a store of LibTorch " +
                   torch_version() + " at " + me.place.host + ":" + std::to_string(me.place.port) +
                   ", got: " + text.substr(0, text.find('\n')) + "; " + me.launcher->remedy,
               ErrorCause::peer_lost);
}

}  // namespace

MetProcesses meet_in_store(const Newcomer& newcomer, Duration timeout) {
  const Deadline deadline = Deadline::after(timeout);
  const std::string host = own_host(newcomer.host, newcomer.place.host, deadline);
  const std::string address = reserve_address(host, deadline);
  if (newcomer.size == 1) return {0, {address}};
  const auto progress = std::make_shared<Progress>();
  start_thread_without_signals("to meet the other processes", [=] {
    try {
      StoreMeeting(newcomer, address, deadline, *progress).meet();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::deadline_exceeded) progress->fail(error);  // wait() says it
    } catch (const std::exception& error) {
      progress->fail(store_error(newcomer, error));
    }
  }).detach();
  MetProcesses met = progress->wait(newcomer, deadline);
  check_reachable(*newcomer.launcher, met.addresses);
  return met;
}

MetProcesses meet_by_mpi(std::int64_t rank, std::int64_t size, const std::string& host,
                         Duration timeout) {
  const Deadline deadline = Deadline::after(timeout);
  const std::string address = reserve_address(own_host(host, "", deadline), deadline);
  if (size == 1) return {0, {address}};
  return {rank,
          collective::exchange_texts_by_mpi(
              address, {.self = static_cast<int>(rank), .size = static_cast<int>(size)}, deadline)};
}

MetProcesses meet_once(const std::string& key, const std::function<MetProcesses()>& meet) {
  struct Place {
    Mutex mutex;
    std::optional<MetProcesses> met COHORT_GUARDED_BY(mutex);
  };
  static Mutex mutex;
  static auto& places = *new std::map<std::string, std::shared_ptr<Place>>;
  std::shared_ptr<Place> place;
  {
    const Lock lock(mutex);
    std::shared_ptr<Place>& found = places[key];
    if (!found) found = std::make_shared<Place>();
    place = found;
  }
  const Lock lock(place->mutex);
  if (place->met) return *place->met;
  place->met = meet();
  // For `cohort status`, which cannot find them.
  log_info("[cluster.rendezvous] this is rank ", place->met->rank, " of the addresses ",
           joined(place->met->addresses, " "));
  return *place->met;
}

void check_reachable(const internal::Launcher& launcher,
                     const std::vector<std::string>& addresses) {
  std::string inside, outside;
  for (const std::string& address : addresses)
    (is_of_loopback(address) ? inside : outside) = address;
  COHORT_CHECK(
      inside.empty() || outside.empty(), ErrorCode::failed_precondition, "[cluster.", launcher.name,
      "] expected addresses at which all processes reach each other, got ", inside,
      ", which only its own host reaches, and ", outside,
      "; set COHORT_OWN_HOST on each host to its name or number in the network, or write the "
      "place where they meet (MASTER_ADDR) as that of the network on all hosts");
}

}  // namespace cohort::cluster
