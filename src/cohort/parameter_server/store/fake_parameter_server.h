// SPDX-License-Identifier: Apache-2.0
// For tests: a parameter server that answers pulls with a given value, and records pushes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/mutex.h"
#include "cohort/parameter_server/server_links.h"
#include "cohort/rpc/messages.h"
#include "cohort/rpc/requester.h"

namespace cohort::testing {

// Thread-safe.
class FakeParameterServer {
 public:
  explicit FakeParameterServer(std::string task) : task_(std::move(task)) {
    listener_ = rpc::listen_inprocess("", [this](const std::shared_ptr<rpc::Channel>& channel) {
      channels_.push_back(channel);
      rpc::Channel* to = channel.get();
      return rpc::Channel::Handlers{
          .on_frame = [this, to](rpc::Frame frame) { answer(*to, std::move(frame)); },
          .on_closed = [](const Error&) {}};
    });
  }
  ~FakeParameterServer() { stop(); }
  FakeParameterServer(const FakeParameterServer&) = delete;
  FakeParameterServer& operator=(const FakeParameterServer&) = delete;

  const std::string& task() const { return task_; }
  // Throws unavailable after stop().
  std::shared_ptr<rpc::Requester> connect() {
    if (!listener_) throw Error(ErrorCode::unavailable, "gone", ErrorCause::peer_lost);
    return rpc::Requester::connect(backend(),
                                   {.address = listener_->address(),
                                    .peer = task_,
                                    .deadline = Deadline::after(std::chrono::seconds(10))});
  }
  void stop() {
    listener_.reset();
    channels_.clear();
  }
  void set_value(std::uint64_t variable, at::Tensor value) {
    const Lock lock(mutex_);
    values_[variable] = std::move(value);
  }
  void refuse_with(Error error) {
    const Lock lock(mutex_);
    refusal_ = std::move(error);
  }
  // Stops answering.
  void fall_silent() {
    const Lock lock(mutex_);
    is_silent_ = true;
  }
  std::vector<rpc::PushRequest> pushes() {
    const Lock lock(mutex_);
    return pushes_;
  }
  std::vector<rpc::PullRequest> pulls() {
    const Lock lock(mutex_);
    return pulls_;
  }

 private:
  static const rpc::Backend& backend() { return rpc::backend_of("inprocess"); }

  void answer(rpc::Channel& to, rpc::Frame frame) {
    rpc::Frame reply;
    const Lock lock(mutex_);
    if (is_silent_) return;
    if (refusal_) {
      to.send(rpc::error_frame(frame.id, *refusal_));
      return;
    }
    const std::uint64_t id = frame.id;
    if (frame.type == static_cast<std::uint16_t>(rpc::MessageType::pull)) {
      reply = rpc::to_frame(pull(rpc::message_of<rpc::PullRequest>(frame)));
    } else {
      pushes_.push_back(rpc::message_of<rpc::PushRequest>(std::move(frame)));
      rpc::PushReply pushed;
      if (pushes_.back().pull) pushed.pulled = pull(*pushes_.back().pull);
      reply = rpc::to_frame(std::move(pushed));
    }
    reply.role = rpc::Frame::Role::response;
    reply.id = id;
    to.send(std::move(reply));
  }

  rpc::PullReply pull(const rpc::PullRequest& request) COHORT_REQUIRES(mutex_) {
    pulls_.push_back(request);
    rpc::PullReply reply;
    for (const std::uint64_t variable : request.variables)
      reply.values.push_back(values_.at(variable));
    return reply;
  }

  const std::string task_;
  Mutex mutex_;
  std::map<std::uint64_t, at::Tensor> values_ COHORT_GUARDED_BY(mutex_);
  std::optional<Error> refusal_ COHORT_GUARDED_BY(mutex_);
  bool is_silent_ COHORT_GUARDED_BY(mutex_) = false;
  std::vector<rpc::PushRequest> pushes_ COHORT_GUARDED_BY(mutex_);
  std::vector<rpc::PullRequest> pulls_ COHORT_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Listener> listener_;
  std::vector<std::shared_ptr<rpc::Channel>> channels_;
};

// Connects to these servers, whose ids are their indices.
inline std::shared_ptr<parameter_server::ServerLinks> links_to(
    const std::vector<FakeParameterServer*>& servers,
    Duration data_timeout = std::chrono::seconds(10)) {
  auto links =
      std::make_shared<parameter_server::ServerLinks>(parameter_server::ServerLinks::Options{
          .self = "chief:0",
          .connect =
              [servers](const rpc::Member& server, Duration, const auto&) {
                return rpc::Connection{.control = nullptr,
                                       .data = servers.at(server.id)->connect()};
              },
          .data_timeout = data_timeout});
  rpc::Membership membership;
  for (std::size_t i = 0; i < servers.size(); ++i)
    membership.servers.push_back({.id = i, .task = servers[i]->task()});
  links->set(membership);
  return links;
}

}  // namespace cohort::testing
