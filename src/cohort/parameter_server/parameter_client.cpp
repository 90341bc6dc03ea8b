// SPDX-License-Identifier: Apache-2.0
#include "cohort/parameter_server/parameter_client.h"

#include <algorithm>
#include <map>
#include <variant>

#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/parameter_server/slices.h"
#include "cohort/rpc/requester.h"
#include "cohort/variable/row_gradient.h"

namespace cohort::parameter_server {
namespace {

// The element of `all` for this server; a new one if there is none.
template <class PerServer>
PerServer& find_or_add(std::vector<PerServer>& all, rpc::MemberId server) {
  const auto known =
      std::find_if(all.begin(), all.end(), [&](const auto& one) { return one.server == server; });
  if (known != all.end()) return *known;
  all.emplace_back().server = server;
  return all.back();
}

// A row that comes several times in a gradient of float32 or float64 is sent once; the server adds
// the rows of other gradients.
void sum_rows_of(rpc::Effect& effect) {
  if (variable::are_summed(effect.row_ids)) return;
  const auto sums =
      variable::sum_rows(variable::GradientRows{effect.row_ids, effect.tensors.at(0)});
  effect.row_ids = sums.ids.view({-1});
  effect.tensors[0] = sums.values;
}

// Returns whether the push was applied, or throws.
bool was_applied(const rpc::Answer& answer) {
  if (const Error* error = std::get_if<Error>(&answer)) throw Error(*error);
  return rpc::message_of<rpc::PushReply>(std::get<rpc::Frame>(answer)).was_applied;
}

Error named_at(const Error& error, const std::string& server) {
  return error.origin().empty() ? Error(error).at(server) : error;
}

}  // namespace

// Thread-safe.
class ParameterClient::OpenPushes {
 public:
  // Returns the number of the push, for answered().
  std::uint64_t add(rpc::MemberId server, const std::shared_ptr<rpc::Requester>& link,
                    TimePoint now) {
    const Lock lock(mutex_);
    pushes_.emplace_hint(pushes_.end(), ++last_, Open{server, link, now});
    return last_;
  }
  void answered(std::uint64_t push) {
    const Lock lock(mutex_);
    pushes_.erase(push);
  }
  struct Open {
    rpc::MemberId server;
    // Weak, because an answer that waits in the link holds this object.
    std::weak_ptr<rpc::Requester> link;
    TimePoint sent;
  };
  // Moves those that were sent at `time` or before into `late`. Returns when the oldest of the
  // others was sent.
  std::optional<TimePoint> take_until(TimePoint time, std::vector<Open>& late) {
    const Lock lock(mutex_);
    while (!pushes_.empty() && pushes_.begin()->second.sent <= time) {
      late.push_back(std::move(pushes_.begin()->second));
      pushes_.erase(pushes_.begin());
    }
    if (pushes_.empty()) return std::nullopt;
    return pushes_.begin()->second.sent;
  }

 private:
  Mutex mutex_;
  std::map<std::uint64_t, Open> pushes_ COHORT_GUARDED_BY(mutex_);  // the oldest one is first
  std::uint64_t last_ COHORT_GUARDED_BY(mutex_) = 0;
};

Pull& PullBatch::entry(const rpc::Slice& slice, std::size_t position) {
  Pull& pull = find_or_add(pulls_, slice.server);
  pull.request.placement = version_;
  pull.request.variables.push_back(slice.stored());
  pull.positions.push_back(position);
  pull.variables.push_back(slice.variable);
  return pull;
}

void PullBatch::add(const rpc::Slice& slice, std::size_t position) { entry(slice, position); }

void PullBatch::add_newer(const rpc::Slice& slice, std::size_t position, std::uint64_t known) {
  rpc::PullRequest& request = entry(slice, position).request;
  request.wants_versions = true;
  request.known.push_back(known);
  COHORT_ASSERT(request.known.size() == request.variables.size());
}

void PullBatch::add_rows(const rpc::Slice& slice, at::Tensor row_ids, std::size_t position) {
  rpc::PullRequest& request = entry(slice, position).request;
  COHORT_ASSERT(request.row_ids.size() + 1 == request.variables.size());
  request.row_ids.push_back(std::move(row_ids));
}

std::uint64_t Push::bytes() const {
  std::uint64_t bytes = 0;
  for (const rpc::Effect& effect : request.effects) bytes += effect.bytes();
  return bytes;
}

void PushBatch::add(std::span<const rpc::Slice> slices, rpc::Effect effect,
                    std::span<const std::uint64_t> versions) {
  if (effect.kind == rpc::Effect::Kind::apply && effect.row_ids.defined()) sum_rows_of(effect);
  for (EffectOnSlice& part : split_effect(slices, std::move(effect), versions)) {
    const rpc::Slice& slice = slices[part.slice];
    part.effect.variable = slice.stored();
    Push& push = find_or_add(pushes_, slice.server);
    push.request.effects.push_back(std::move(part.effect));
    push.variables.push_back(slice.variable);
  }
}

std::vector<Push> PushBatch::take(std::uint64_t version) {
  for (Push& push : pushes_) push.request.placement = version;
  return std::exchange(pushes_, {});
}

ParameterClient::ParameterClient(std::shared_ptr<ServerLinks> links)
    : links_(std::move(links)), open_(std::make_shared<OpenPushes>()) {}

// All connections are made before anything is sent, because an exception for a server that cannot
// be reached would lose the answers of the others.
void ParameterClient::ask(std::vector<Asked> asked,
                          const std::function<void(std::size_t, rpc::Frame)>& take,
                          const std::function<std::string(std::size_t)>& describe) const {
  const auto described = [&](const Error& error, std::size_t i) {
    return named_at(error, links_->name_of(asked[i].server)).during(describe(i));
  };
  std::vector<std::shared_ptr<rpc::Requester>> links;
  std::vector<rpc::Requester::Request> requests;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    try {
      links.push_back(links_->get(asked[i].server).data);
    } catch (const Error& error) {
      throw described(error, i);
    }
    requests.push_back({links[i].get(), std::move(asked[i].frame), asked[i].has_small_answer});
  }
  std::vector<std::optional<rpc::Answer>> answers =
      rpc::Requester::ask_all(std::move(requests), Deadline::after(links_->data_timeout()));
  std::optional<Error> first_error;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const rpc::MemberId server = asked[i].server;
    if (!answers[i]) {
      answers[i] = late_error(std::string(asked[i].what), "an answer", links_->name_of(server),
                              links_->data_timeout());
      links[i]->give_up(std::get<Error>(*answers[i]));
      links_->note_silence(server);
    }
    try {
      if (const Error* refusal = std::get_if<Error>(&*answers[i])) throw Error(*refusal);
      take(i, std::get<rpc::Frame>(std::move(*answers[i])));
    } catch (...) {
      if (!first_error) first_error = described(current_error(), i);
    }
  }
  if (first_error) throw Error(*first_error);
}

void ParameterClient::exchange(Exchange exchange, VariableTraffic& traffic,
                               const Describe& describe) const {
  const std::size_t num_pushes = exchange.pushes.size();
  std::vector<std::vector<std::uint64_t>> pushed;  // the variables of each push, for errors
  std::vector<const Pull*> pulls;                  // of each request; nullptr: none
  std::vector<Asked> asked;
  const auto request_of = [&](const Pull& pull) {
    rpc::PullRequest request = pull.request;
    request.snapshot = exchange.snapshot;
    return request;
  };
  for (Push& push : exchange.pushes) {
    pushed.push_back(push.variables);
    traffic.pushed_bytes += push.bytes();
    const auto pull = std::ranges::find(exchange.pulls, push.server, &Pull::server);
    pulls.push_back(pull == exchange.pulls.end() ? nullptr : &*pull);
    if (pulls.back() != nullptr) push.request.pull = request_of(*pull);
    asked.push_back({push.server, "push", rpc::to_frame(std::move(push.request)),
                     /*has_small_answer=*/pulls.back() == nullptr});
  }
  for (const Pull& pull : exchange.pulls) {
    if (std::ranges::find(pulls, &pull) != pulls.end()) continue;  // it goes with a push
    pulls.push_back(&pull);
    asked.push_back({pull.server, "pull", rpc::to_frame(request_of(pull))});
  }
  const auto take_answer = [&](std::size_t i, rpc::Frame answer) {
    if (i >= num_pushes) {
      auto reply = rpc::message_of<rpc::PullReply>(std::move(answer));
      return take(*pulls[i], std::move(reply), exchange, traffic);
    }
    auto reply = rpc::message_of<rpc::PushReply>(std::move(answer));
    if (!reply.was_applied) ++traffic.pushes_dropped;
    if (pulls[i] == nullptr) return;
    take(*pulls[i], std::move(reply.pulled).value_or(rpc::PullReply()), exchange, traffic);
  };
  ask(std::move(asked), take_answer, [&](std::size_t i) {
    const bool is_push = i < num_pushes;
    return describe(is_push ? pushed[i] : pulls[i]->variables, is_push);
  });
}

std::vector<rpc::StateOfRange> ParameterClient::export_state(std::span<const Range> ranges,
                                                             const Export& how,
                                                             const Describe& describe) const {
  struct OfServer {
    rpc::MemberId server = 0;
    rpc::ExportRequest request = {};
    std::vector<std::size_t> positions = {};
    std::vector<std::uint64_t> variables = {};
  };
  std::vector<OfServer> servers;
  for (std::size_t i = 0; i < ranges.size(); ++i) {
    OfServer& server = find_or_add(servers, ranges[i].server);
    server.request.ranges.push_back(ranges[i].range);
    server.positions.push_back(i);
    server.variables.push_back(ranges[i].variable);
  }
  std::vector<Asked> asked;
  for (OfServer& server : servers) {
    server.request.placement = how.placement;
    server.request.has_slots = how.has_slots;
    rpc::Frame frame = how.cut == 0
                           ? rpc::to_frame(std::move(server.request))
                           : rpc::to_frame(rpc::CutExport{how.cut, std::move(server.request)});
    asked.push_back({server.server, "export", std::move(frame)});
  }
  std::vector<rpc::StateOfRange> states(ranges.size());
  const auto take_answer = [&](std::size_t i, rpc::Frame answer) {
    rpc::ExportReply reply = rpc::message_of<rpc::ExportReply>(std::move(answer));
    const std::vector<std::size_t>& positions = servers[i].positions;
    COHORT_CHECK(reply.states.size() == positions.size(), ErrorCode::data_loss,
                 "[server.export_state] expected ", positions.size(), " states from ",
                 links_->name_of(servers[i].server), ", got ", reply.states.size());
    for (std::size_t k = 0; k < positions.size(); ++k)
      states[positions[k]] = std::move(reply.states[k]);
  };
  ask(std::move(asked), take_answer,
      [&](std::size_t i) { return describe(servers[i].variables, /*is_push=*/false); });
  return states;
}

void ParameterClient::take_snapshot(
    std::vector<std::pair<rpc::MemberId, rpc::SnapshotRequest>> requests) const {
  std::vector<Asked> asked;
  for (auto& [server, request] : requests)
    asked.push_back({server, "snapshot", rpc::to_frame(std::move(request))});
  ask(
      std::move(asked), [](std::size_t, const rpc::Frame&) {},
      [](std::size_t) { return std::string("snapshot of values"); });
}

void ParameterClient::take_cut(std::span<const rpc::MemberId> servers,
                               const rpc::CutRequest& request) const {
  std::vector<Asked> asked;
  for (const rpc::MemberId server : servers)
    asked.push_back({server, "cut", rpc::to_frame(request)});
  ask(
      std::move(asked), [](std::size_t, const rpc::Frame&) {},
      [&](std::size_t) { return std::string(request.is_end ? "end of a cut" : "cut of values"); });
}

void ParameterClient::import_state(rpc::MemberId server, rpc::ImportRequest request,
                                   std::uint64_t variable, const Describe& describe) const {
  std::vector<Asked> asked;
  asked.push_back({server, "import", rpc::to_frame(std::move(request))});
  ask(
      std::move(asked), [](std::size_t, const rpc::Frame&) {},
      [&](std::size_t) {
        return describe({&variable, 1}, /*is_push=*/true);
      });
}

void ParameterClient::erase_rows(std::vector<std::pair<rpc::MemberId, rpc::EraseRequest>> requests,
                                 std::uint64_t variable, const Describe& describe) const {
  std::vector<Asked> asked;
  for (auto& [server, request] : requests)
    asked.push_back({server, "erase", rpc::to_frame(std::move(request))});
  ask(
      std::move(asked), [](std::size_t, const rpc::Frame&) {},
      [&](std::size_t) {
        return describe({&variable, 1}, /*is_push=*/true);
      });
}

void ParameterClient::take(const Pull& pull, rpc::PullReply reply, const Exchange& into,
                           VariableTraffic& traffic) const {
  const std::size_t count = pull.positions.size();
  const std::size_t versions = pull.request.wants_versions ? count : 0;
  const auto has = [&](std::size_t i) {
    return i < reply.versions.size() && pull.request.has(i, reply.versions[i]);
  };
  std::size_t values = 0;
  for (std::size_t i = 0; i < count; ++i) values += has(i) ? 0 : 1;
  COHORT_CHECK(reply.values.size() == values && reply.versions.size() == versions,
               ErrorCode::data_loss, "[server.pull] expected ", values, " values and ", versions,
               " versions from ", links_->name_of(pull.server), ", got ", reply.values.size(),
               " and ", reply.versions.size());
  auto next = reply.values.begin();
  for (std::size_t i = 0; i < count; ++i) {
    if (versions > 0) into.versions[pull.positions[i]] = reply.versions[i];
    if (has(i)) continue;
    traffic.pulled_bytes += next->nbytes();
    into.values[pull.positions[i]] = std::move(*next++);
  }
}

void ParameterClient::push_later(Push push, OnEnd on_end) const {
  const std::shared_ptr<rpc::Requester> link = links_->get(push.server).data;
  rpc::Frame frame = rpc::to_frame(std::move(push.request));
  const std::uint64_t number = open_->add(push.server, link, Clock::system().now());
  link->request(std::move(frame), [open = open_, number, server = links_->name_of(push.server),
                                   on_end = std::move(on_end)](const rpc::Answer& answer) {
    open->answered(number);
    bool is_applied = false;
    std::optional<Error> error;
    try {
      is_applied = was_applied(answer);
    } catch (...) {
      error = named_at(current_error(), server).during("pushing updates to " + server);
    }
    on_end(error, is_applied);
  });
}

Deadline ParameterClient::give_up_late(TimePoint now) const {
  // So that the sum below does not overflow.
  const Duration timeout = std::min(links_->data_timeout(), Duration::max() / 4);
  std::vector<OpenPushes::Open> late;
  const std::optional<TimePoint> oldest = open_->take_until(now - timeout, late);
  for (const OpenPushes::Open& push : late) {  // without the lock: the answers call answered()
    if (const auto link = push.link.lock()) {
      link->give_up(
          late_error("push", "an acknowledgement", links_->name_of(push.server), timeout));
    }
  }
  return oldest ? Deadline(*oldest + timeout) : Deadline();
}

}  // namespace cohort::parameter_server
