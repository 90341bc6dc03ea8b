// SPDX-License-Identifier: Apache-2.0
#include "cohort/net/name_lookup.h"

#include <map>

#include "cohort/core/error.h"
#include "cohort/core/start_thread.h"

namespace cohort::net {
namespace {

// The running lookups, by question, so that a retry joins the lookup of the last attempt.
// Thread-safe.
class Lookups {
 public:
  std::shared_ptr<Lookup> start(const std::string& question,
                                const std::function<FoundAddresses()>& ask) {
    const Lock lock(mutex_);
    std::shared_ptr<Lookup>& running = running_[question];
    if (running) return running;
    try {
      auto lookup = std::make_shared<Lookup>();
      start_thread_without_signals("to look up a host's name", [this, question, ask, lookup] {
        FoundAddresses found = ask();
        forget(question);
        lookup->set(std::move(found));
      }).detach();
      running = lookup;
      return lookup;
    } catch (...) {
      running_.erase(question);
      throw;
    }
  }

 private:
  void forget(const std::string& question) {
    const Lock lock(mutex_);
    running_.erase(question);
  }

  Mutex mutex_;
  std::map<std::string, std::shared_ptr<Lookup>> running_ COHORT_GUARDED_BY(mutex_);
};

FoundAddresses get(const HostPort& where, int flags, const GetAddresses& get_addresses) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int result = get_addresses(where.host.c_str(), where.port.c_str(), &hints, &found);
  if (result != 0) return {nullptr, gai_strerror(result), result == EAI_AGAIN};
  return {std::shared_ptr<const addrinfo>(
              found, [](const addrinfo* list) { ::freeaddrinfo(const_cast<addrinfo*>(list)); }),
          {}};
}

constexpr auto kStopPoll = std::chrono::milliseconds(100);

}  // namespace

void Lookup::set(FoundAddresses found) {
  {
    const Lock lock(mutex_);
    found_ = std::move(found);
  }
  changed_.notify_all();
}

std::optional<FoundAddresses> Lookup::wait(Deadline deadline,
                                           const std::function<bool()>& is_given_up) {
  const Lock lock(mutex_);
  changed_.wait(mutex_, deadline,
                [&]() COHORT_REQUIRES(mutex_) { return found_ || (is_given_up && is_given_up()); });
  return found_;
}

std::optional<FoundAddresses> Lookup::found() const {
  const Lock lock(mutex_);
  return found_;
}

void Lookup::wake() noexcept {
  // Waiting threads now either sleep or have not called is_given_up() yet.
  { const Lock lock(mutex_); }
  changed_.notify_all();
}

std::shared_ptr<Lookup> start_look_up(const HostPort& where, bool is_for_listening,
                                      const GetAddresses& get_addresses) {
  const int flags = is_for_listening ? AI_PASSIVE : 0;
  FoundAddresses number = get(where, flags | AI_NUMERICHOST, &::getaddrinfo);
  if (number.list) {
    auto known = std::make_shared<Lookup>();
    known->set(std::move(number));
    return known;
  }
  static Lookups& lookups = *new Lookups;  // its threads may outlive main()
  return lookups.start(where.to_string() + (is_for_listening ? " to listen" : ""),
                       [where, flags, get_addresses] { return get(where, flags, get_addresses); });
}

std::optional<FoundAddresses> look_up(const HostPort& where, bool is_for_listening,
                                      Deadline deadline, const GetAddresses& get_addresses) {
  return start_look_up(where, is_for_listening, get_addresses)->wait(deadline);
}

std::shared_ptr<const addrinfo> look_up_own(const HostPort& where, Deadline deadline,
                                            const GetAddresses& get_addresses,
                                            const std::function<bool()>& should_stop) {
  const std::shared_ptr<Lookup> lookup = start_look_up(where, true, get_addresses);
  std::optional<FoundAddresses> found;
  do {
    const Deadline poll = Deadline::after(kStopPoll);
    found = lookup->wait(should_stop && poll.time() < deadline.time() ? poll : deadline);
    COHORT_CHECK(found || !should_stop || !should_stop(), ErrorCode::cancelled,
                 "[net.listen] expected the address of host '", where.host,
                 "', which is this one, got none before the task was ended");
  } while (!found && !deadline.has_expired());
  COHORT_CHECK(found, ErrorCode::deadline_exceeded, "[net.listen] expected the address of host '",
               where.host, "', which is this one, before the deadline, got none; ", kNameRemedy);
  COHORT_CHECK(!found->is_temporary, ErrorCode::unavailable,
               "[net.listen] expected the address of host '", where.host,
               "', which is this one, got: ", found->problem, "; ", kNameRemedy);
  COHORT_CHECK(found->list != nullptr, ErrorCode::invalid_argument,
               "[net.listen] expected an address of this machine, got ", where.to_string(), " (",
               found->problem, ")", kOwnAddressRemedy);
  return found->list;
}

}  // namespace cohort::net
