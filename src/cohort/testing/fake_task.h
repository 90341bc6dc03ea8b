// SPDX-License-Identifier: Apache-2.0
// A scripted task of a cluster: it answers control calls, accepts closures and reports their ends.
//
//   FakeTask ps("ps:0"), worker("worker:0");
//   ParameterServerStrategy strategy(cluster_of({&ps, &worker}),
//                                    {.cluster = {.job_id = kFakeJob}});
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/mutex.h"
#include "cohort/rpc/channel.h"
#include "cohort/rpc/connection.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/messages.h"
#include "cohort/rpc/stream_listener_for_tests.h"

namespace cohort::testing {

inline constexpr const char* kFakeJob = "fake";

// Thread-safe. Set hooks before the coordinator connects; they run on the task's threads. The task
// answers with the error that a hook throws. Many methods because it implements both control
// interfaces of a task.
class FakeTask final : public rpc::ControlService, public rpc::CoordinatorSession {
 public:
  using End = rpc::ClosureEnd;

  explicit FakeTask(std::string task)
      : task_(std::move(task)),
        listener_(listen_on_stream(acceptor())),
        control_(rpc::serve_control("127.0.0.1:0", *this)) {}
  ~FakeTask() override {
    control_.reset();
    close_channels();
    listener_.reset();
  }

  const std::string& task() const { return task_; }
  const std::string& address() const { return control_->address(); }

  std::function<void(const rpc::FunctionBody&)> on_register = [](const rpc::FunctionBody&) {};
  std::function<void()> on_health = [] {};
  std::function<void(const rpc::HandshakeRequest&)> on_handshake =
      [](const rpc::HandshakeRequest&) {};
  std::function<rpc::PeekReply(const rpc::PeekRequest&)> on_peek = [](const rpc::PeekRequest&) {
    return rpc::PeekReply();
  };
  // Answers pulls, pushes and other requests on a channel.
  std::function<rpc::Frame(const rpc::Frame&)> on_request = [](const rpc::Frame& request) {
    const bool is_push = static_cast<rpc::MessageType>(request.type) == rpc::MessageType::push;
    return is_push ? rpc::to_frame(rpc::PushReply{}) : rpc::Frame{.type = request.type};
  };
  // While true, every closure that arrives is reported as successful at once.
  std::atomic<bool> answers{true};

  // While false, pings get no answer, as if something between the hosts dropped all frames.
  std::atomic<bool> answers_pings{true};
  bool await_pings(std::size_t count) {
    return await([&]() COHORT_REQUIRES(mutex_) { return pings_ >= count; });
  }

  // Closes the open channels, as if the machine was lost and came back.
  void close_channels() {
    std::vector<std::shared_ptr<rpc::Channel>> open;
    {
      const Lock lock(mutex_);
      open.swap(channels_);
    }
    for (const auto& channel : open) channel->close();
  }
  // Tells the coordinator that another one took its place at this task.
  void take_place() {
    std::vector<std::shared_ptr<rpc::Channel>> open;
    {
      const Lock lock(mutex_);
      open = channels_;
    }
    for (const auto& channel : open) channel->send(rpc::farewell_frame(rpc::replaced_error(task_)));
  }
  bool await_hellos(std::size_t count) {
    return await([&]() COHORT_REQUIRES(mutex_) { return hellos_ >= count; });
  }
  bool has_hellos(std::size_t count) {
    const Lock lock(mutex_);
    return hellos_ >= count;
  }
  bool await_closures(std::size_t count) {
    return await([&]() COHORT_REQUIRES(mutex_) { return calls_.size() >= count; });
  }
  // All closures in order of arrival, including retries.
  std::vector<rpc::ClosureCall> closures() {
    const Lock lock(mutex_);
    return calls_;
  }
  // The names of the function bodies it accepted, by id; one entry per registration.
  std::multimap<std::uint32_t, std::string> functions() {
    const Lock lock(mutex_);
    return functions_;
  }
  std::set<std::uint64_t> released() {
    const Lock lock(mutex_);
    return released_;
  }
  // Reports these ends on the newest channel.
  void end(std::vector<End> ends) {
    std::shared_ptr<rpc::Channel> channel;
    {
      const Lock lock(mutex_);
      ASSERT_FALSE(channels_.empty());
      channel = channels_.back();
    }
    channel->send(rpc::to_frame(rpc::CompletedBatch{std::move(ends)}));
  }

  // The data timeout of the last handshake.
  Duration data_timeout() {
    const Lock lock(mutex_);
    return data_timeout_;
  }

  rpc::HandshakeReply handshake(const rpc::HandshakeRequest& request, const rpc::Caller&) override {
    on_handshake(request);
    {
      const Lock lock(mutex_);
      data_timeout_ = request.data_timeout;
    }
    return {rpc::identity_of_process(task_, kFakeJob, 1), {{"stream", listener_->address()}}};
  }
  TaskHealth health() override {
    on_health();
    return {};
  }
  void set_membership(const rpc::Membership&) override {}
  void place_variables(const rpc::Placement&) override {}
  void register_function(const rpc::FunctionBody& body) override {
    on_register(body);
    const Lock lock(mutex_);
    functions_.emplace(body.id, body.name);
  }
  void create_variables(const std::vector<rpc::VariableSpec>&) override {}
  void create_iterator(const rpc::IteratorSpec&) override {}
  void release(const std::vector<std::uint64_t>& resources) override {
    const Lock lock(mutex_);
    released_.insert(resources.begin(), resources.end());
  }
  std::shared_ptr<rpc::CoordinatorSession> session_of(const rpc::Caller&) override {
    return {std::shared_ptr<void>(), this};
  }
  void shutdown(const rpc::Caller&, std::chrono::milliseconds) override {}

 private:
  static constexpr auto kPatience = std::chrono::seconds(60);

  bool await(const std::function<bool()>& is_so) {
    const Lock lock(mutex_);
    return changed_.wait(mutex_, Deadline::after(kPatience), is_so);
  }
  rpc::AcceptHandler acceptor() {
    return [this](std::shared_ptr<rpc::Channel> channel) {
      const std::weak_ptr<rpc::Channel> weak = channel;
      {
        const Lock lock(mutex_);
        channels_.push_back(std::move(channel));
      }
      return rpc::Channel::Handlers{.on_frame = [this, weak](rpc::Frame frame) {
        if (const auto open = weak.lock()) receive(*open, std::move(frame));
      }};
    };
  }
  void receive(rpc::Channel& channel, rpc::Frame frame) {
    if (static_cast<rpc::MessageType>(frame.type) == rpc::MessageType::run)
      return run(channel, rpc::message_of<rpc::RunBatch>(std::move(frame)));
    if (static_cast<rpc::MessageType>(frame.type) == rpc::MessageType::cancel)
      return cancel(channel, rpc::message_of<rpc::CancelRequest>(frame));
    if (frame.role != rpc::Frame::Role::request) return;
    if (static_cast<rpc::MessageType>(frame.type) == rpc::MessageType::peek)
      return peek(channel, frame);
    if (static_cast<rpc::MessageType>(frame.type) == rpc::MessageType::ping)
      return ping(channel, frame);
    const bool is_hello = static_cast<rpc::MessageType>(frame.type) == rpc::MessageType::hello;
    channel.send(is_hello ? response_to(frame, rpc::to_frame(rpc::HelloReply{})) : answer(frame));
    const Lock lock(mutex_);
    if (is_hello) ++hellos_;
    changed_.notify_all();
  }
  void ping(rpc::Channel& channel, const rpc::Frame& request) {
    if (answers_pings) channel.send(response_to(request, rpc::ping_frame()));
    const Lock lock(mutex_);
    ++pings_;
    changed_.notify_all();
  }
  static rpc::Frame response_to(const rpc::Frame& request, rpc::Frame reply) {
    reply.role = rpc::Frame::Role::response;
    reply.type = request.type;
    reply.id = request.id;
    return reply;
  }
  rpc::Frame answer(const rpc::Frame& request) const {
    try {
      return response_to(request, on_request(request));
    } catch (const Error& error) {
      return rpc::error_frame(request.id, error);
    }
  }
  void peek(rpc::Channel& channel, const rpc::Frame& request) {
    rpc::Frame reply;
    try {
      reply =
          response_to(request, rpc::to_frame(on_peek(rpc::message_of<rpc::PeekRequest>(request))));
    } catch (const Error& error) {
      reply = rpc::error_frame(request.id, error);
    }
    try {
      channel.send(std::move(reply));
    } catch (const Error&) {  // the hook has closed the channel
    }
  }
  void run(rpc::Channel& channel, rpc::RunBatch batch) {
    rpc::CompletedBatch done;
    const bool is_answered = answers;
    {
      const Lock lock(mutex_);
      for (rpc::ClosureCall& call : batch.closures) {
        EXPECT_TRUE(functions_.contains(call.function_id)) << "a closure before its function";
        done.ends.push_back({.closure_id = call.closure_id});
        calls_.push_back(std::move(call));
      }
      changed_.notify_all();
    }
    if (is_answered) channel.send(rpc::to_frame(std::move(done)));
  }

  void cancel(rpc::Channel& channel, const rpc::CancelRequest& request) {
    rpc::CompletedBatch ends;
    for (const std::uint64_t closure : request.closures)
      ends.ends.push_back({.closure_id = closure, .status = End::Status::cancelled});
    channel.send(rpc::to_frame(std::move(ends)));
  }

  const std::string task_;
  Mutex mutex_;
  Condition changed_;
  std::vector<std::shared_ptr<rpc::Channel>> channels_ COHORT_GUARDED_BY(mutex_);
  std::size_t hellos_ COHORT_GUARDED_BY(mutex_) = 0;
  std::size_t pings_ COHORT_GUARDED_BY(mutex_) = 0;
  Duration data_timeout_ COHORT_GUARDED_BY(mutex_) = Duration::zero();
  std::vector<rpc::ClosureCall> calls_ COHORT_GUARDED_BY(mutex_);
  std::multimap<std::uint32_t, std::string> functions_ COHORT_GUARDED_BY(mutex_);
  std::set<std::uint64_t> released_ COHORT_GUARDED_BY(mutex_);
  std::unique_ptr<rpc::Listener> listener_;
  std::unique_ptr<rpc::ControlServer> control_;
};

// The resolver of a coordinator of these tasks; `tasks` are in the order of their indices. The
// coordinator has no address in the spec, so it does not serve its health.
inline SimpleResolver cluster_of(const std::vector<FakeTask*>& tasks) {
  std::map<std::string, std::vector<std::string>> jobs;
  for (const FakeTask* task : tasks)
    jobs[task->task().substr(0, task->task().find(':'))].push_back(task->address());
  return SimpleResolver(ClusterSpec(jobs));
}

}  // namespace cohort::testing
