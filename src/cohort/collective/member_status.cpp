// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/member_status.h"

#include <deque>
#include <memory>
#include <utility>

#include "cohort/collective/formation/conversation.h"
#include "cohort/net/host_port.h"
#include "cohort/net/name_lookup.h"

namespace cohort::collective {
namespace {

using formation::Conversation;
using State = MemberProbe::State;

struct Asked {
  explicit Asked(const std::string& address)
      : lookup(net::start_look_up(net::parse_given_address(address), false)),
        conversation(address) {}

  std::shared_ptr<net::Lookup> lookup;  // shared with the conversation's, by the name
  Conversation conversation;
};

MemberProbe failed(State state, std::string reason) {
  return {.state = state, .reason = std::move(reason)};
}

MemberProbe answered(const formation::Reply& reply, const WorkerTask& task,
                     const std::string& job) {
  if (reply.kind != formation::ReplyKind::status) return failed(State::stranger, reply.text);
  const std::string& named = reply.status.task;
  if (!job.empty() && named.empty()) {
    return failed(State::stranger,
                  "a worker of another job answers; give the cluster that the task was given, or "
                  "its job id");
  }
  if (!named.empty() && !task.name.empty() && named != task.name)
    return failed(State::stranger, named + " of this job answers at the address of " + task.name);
  return {.state = State::answers, .status = reply.status};
}

MemberProbe result_of(const Asked& asked, const WorkerTask& task, const std::string& job) {
  const auto found = asked.lookup->found();
  if (!found || !found->list) {
    return failed(State::name_not_resolved,
                  found ? found->problem + "; " + net::kNameRemedy
                        : std::string("no name server has answered before the deadline; ") +
                              net::kNameRemedy);
  }
  const Conversation& conversation = asked.conversation;
  switch (conversation.state()) {
    case Conversation::State::answered:
      return answered(conversation.reply(), task, job);
    case Conversation::State::refused:
      return failed(State::nobody_listens, "nobody listens at " + task.address +
                                               ": the process has ended, or has not come so far");
    case Conversation::State::lost:
      if (conversation.is_silent())
        return failed(State::nobody_listens,
                      task.address + " cannot be reached: " + conversation.problem());
      return failed(State::stranger,
                    "what listens there is no worker of a synchronous job of this version, or "
                    "ended just now (" +
                        conversation.problem() + ")");
    case Conversation::State::idle:
    case Conversation::State::pending:
      break;
  }
  return failed(State::no_answer,
                "somebody listens there, and did not answer before the deadline; the process may "
                "be stopped, or its host overloaded");
}

}  // namespace

std::vector<MemberProbe> probe_members(const std::vector<WorkerTask>& tasks, const std::string& job,
                                       Deadline deadline) {
  std::deque<Asked> all;
  for (const WorkerTask& task : tasks) all.emplace_back(task.address);
  for (std::size_t i = 0; i < tasks.size(); ++i) {
    formation::Request request{.kind = formation::RequestKind::status};
    request.from.job = job;
    all[i].conversation.ask(encode(request));
  }
  std::vector<Conversation*> pending;
  do {
    pending.clear();
    for (Asked& asked : all) {
      if (asked.conversation.state() == Conversation::State::pending)
        pending.push_back(&asked.conversation);
    }
    if (!pending.empty()) formation::advance_all(pending, -1, deadline);
  } while (!pending.empty() && !deadline.has_expired());
  std::vector<MemberProbe> results;
  for (std::size_t i = 0; i < tasks.size(); ++i)
    results.push_back(result_of(all[i], tasks[i], job));
  return results;
}

}  // namespace cohort::collective
