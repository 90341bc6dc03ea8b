// SPDX-License-Identifier: Apache-2.0
#include "cohort/testing/cluster/test_cluster.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>
#include <thread>

#include "cohort/cluster/cluster_resolver.h"
#include "cohort/core/error.h"
#include "cohort/core/mutex.h"
#include "cohort/core/start_thread.h"
#include "cohort/core/system_error.h"
#include "cohort/rpc/control.h"
#include "cohort/rpc/reserved_port.h"

namespace cohort::testing {
namespace {

constexpr auto kCallTimeout = std::chrono::seconds(20);
constexpr auto kStartTimeout = std::chrono::minutes(2);  // enough with sanitizers on a busy host
constexpr auto kStartPoll = std::chrono::milliseconds(2);
// The number of attempts to start; a new attempt with other ports follows if another program takes
// one of the ports explicitly.
constexpr int kStartsMax = 4;
constexpr std::size_t kQuotedBytesMax = 4000;  // of a server's output

std::vector<std::string> default_command() {
  const char* binary = std::getenv("COHORT_TEST_SERVER");
  if (binary != nullptr) return {binary};
  return {"cohort", "server"};
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> made;
  for (std::string& text : texts) made.push_back(text.data());
  made.push_back(nullptr);
  return made;
}

std::vector<std::string> environment_with(const std::vector<std::string>& additions) {
  std::vector<std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    if (text.rfind("TF_CONFIG=", 0) != 0 && text.rfind("COHORT_DATA_DIRS=", 0) != 0)
      variables.push_back(text);
  }
  variables.insert(variables.end(), additions.begin(), additions.end());
  return variables;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : ":") + part;
  return text;
}

// Starts a program. Returns 0, or errno if the program cannot be run. Does not return in the child.
int run(std::vector<std::string> command, std::vector<std::string> environment,
        const std::string& log, int& pid) {
  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(environment);
  const int parent = ::getpid();
  int failure[2];  // closed by the new program
  COHORT_CHECK(::pipe2(failure, O_CLOEXEC) == 0, ErrorCode::resource_exhausted,
               "[testing.cluster] expected a pipe, got: ", text_of_errno(errno));
  pid = ::fork();
  if (pid == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) ::_exit(127);
    const int fd = ::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    ::dup2(fd, STDOUT_FILENO);
    ::dup2(fd, STDERR_FILENO);
    ::execvpe(argv[0], argv.data(), envp.data());
    const int error = errno;
    [[maybe_unused]] const auto written = ::write(failure[1], &error, sizeof(error));
    ::_exit(127);
  }
  ::close(failure[1]);
  int error = 0;
  while (pid > 0 && ::read(failure[0], &error, sizeof(error)) < 0 && errno == EINTR) {
  }
  ::close(failure[0]);
  return error;
}

}  // namespace

int free_port() {
  static Mutex mutex;
  static std::vector<rpc::ReservedPort>& ports = *new std::vector<rpc::ReservedPort>;
  const Lock lock(mutex);
  return ports.emplace_back().number();
}

// By the names of the tasks.
struct TestCluster::Ports {
  std::map<std::string, rpc::ReservedPort> of_task;
};

TestCluster::TestCluster(TestClusterOptions options) : options_(std::move(options)) {
  if (options_.command.empty()) options_.command = default_command();
  std::string pattern = std::filesystem::temp_directory_path() / "cohort-test-XXXXXX";
  COHORT_CHECK(::mkdtemp(pattern.data()) != nullptr, ErrorCode::resource_exhausted,
               "[testing.cluster] expected a temporary folder, got: ", text_of_errno(errno));
  folder_ = pattern;
  try {
    start_all();
  } catch (...) {
    end();
    throw;
  }
}

TestCluster::~TestCluster() { end(); }

void TestCluster::choose_ports() {
  std::map<std::string, std::vector<std::string>> jobs;
  auto ports = std::make_unique<Ports>();
  const auto add = [&](const std::string& job, int count) {
    for (int i = 0; i < count; ++i) {
      const auto& port = ports->of_task[job + ":" + std::to_string(i)];
      jobs[job].push_back("127.0.0.1:" + std::to_string(port.number()));
    }
  };
  add("chief", 1);
  add("worker", options_.workers);
  add("ps", options_.ps);
  spec_ = ClusterSpec(jobs);
  ports_ = std::move(ports);  // releases the old ports only now, so the new ones are different
}

void TestCluster::start_all() {
  for (int starts = 1;; ++starts) {
    choose_ports();
    const std::optional<Error> failure = try_start();
    if (!failure) return;
    const bool is_lost = failure->code() == ErrorCode::resource_exhausted || has_lost_port();
    if (starts == kStartsMax || !is_lost) throw Error(*failure);
    kill_all();
  }
}

// Returns the error that kept a server from serving, or nothing once all listen.
std::optional<Error> TestCluster::try_start() {
  try {
    for (const auto& [job, count] :
         {std::pair("ps", options_.ps), std::pair("worker", options_.workers)}) {
      for (int i = 0; i < count; ++i) {
        const std::string task = job + (":" + std::to_string(i));
        const auto& skipped = options_.not_started;
        if (std::find(skipped.begin(), skipped.end(), task) == skipped.end()) launch(task);
      }
    }
  } catch (const Error& error) {
    if (error.code() == ErrorCode::resource_exhausted) return error;
    throw;
  }
  return await_all();
}

std::optional<Error> TestCluster::await_all() const {
  const Deadline deadline = Deadline::after(kStartTimeout);
  for (const auto& [task, pid] : pids_) {
    if (std::optional<Error> failure = await_listener(task, deadline)) return failure;
  }
  return std::nullopt;
}

// Checks the port's state in the system instead of connecting, which the server would log.
std::optional<Error> TestCluster::await_listener(const std::string& task, Deadline deadline) const {
  while (true) {
    const std::string end = end_of(task);
    if (!end.empty()) {
      return Error(ErrorCode::failed_precondition,
                   "[testing.cluster] expected " + task + " to serve, got its end (" + end +
                       ") before it did; the command was '" + options_.command.front() + "', " +
                       quoted_output(task));
    }
    if (ports_->of_task.at(task).has_listener()) return std::nullopt;
    if (deadline.has_expired()) {
      return Error(ErrorCode::deadline_exceeded,
                   "[testing.cluster] expected " + task +
                       " to listen at its address in TF_CONFIG within 120 s, got nothing there; "
                       "the command was '" +
                       options_.command.front() + "', " + quoted_output(task));
    }
    std::this_thread::sleep_for(kStartPoll);
  }
}

// "exit code 127" or "signal 11"; empty while the task runs.
std::string TestCluster::end_of(const std::string& task) const {
  siginfo_t info{};
  const auto pid = static_cast<id_t>(pids_.at(task));
  if (::waitid(P_PID, pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) return "";
  const bool is_exit = info.si_code == CLD_EXITED;
  return (is_exit ? "exit code " : "signal ") + std::to_string(info.si_status);
}

// Whether a server has ended and another program listens at its port.
bool TestCluster::has_lost_port() const {
  return std::any_of(pids_.begin(), pids_.end(), [this](const auto& entry) {
    return !end_of(entry.first).empty() && ports_->of_task.at(entry.first).has_listener();
  });
}

std::string TestCluster::quoted_output(const std::string& task) const {
  std::string text = output(task);
  if (text.empty()) return "which printed nothing";
  if (text.size() > kQuotedBytesMax) text = "[...] " + text.substr(text.size() - kQuotedBytesMax);
  return "which printed:\n" + text;
}

void TestCluster::kill_all() noexcept {
  for (const auto& [task, pid] : pids_) ::kill(pid, SIGKILL);
  for (const auto& [task, pid] : pids_) ::waitpid(pid, nullptr, 0);
  pids_.clear();
}

void TestCluster::end() noexcept {
  kill_all();
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

SimpleResolver TestCluster::resolver() const {
  return SimpleResolver(spec_for("chief:0"), {.task_type = "chief", .task_id = 0});
}

// The cluster spec for `task`, with the addresses of the other tasks' proxies.
ClusterSpec TestCluster::spec_for(const std::string& task) const {
  std::map<std::string, std::vector<std::string>> jobs;
  for (const std::string& job : spec_.jobs()) {
    for (const std::int64_t i : spec_.task_indices(job)) {
      const std::string other = job + ":" + std::to_string(i);
      const auto proxy = options_.proxies.find(other);
      const bool is_behind = other != task && proxy != options_.proxies.end();
      jobs[job].push_back(is_behind ? proxy->second : spec_.task_address(job, i));
    }
  }
  return ClusterSpec(jobs);
}

std::string TestCluster::tf_config(const std::string& task) const {
  const TaskId id = TaskId::parse(task);
  nlohmann::json config;
  config["cluster"] = nlohmann::json::parse(spec_for(task).to_json());
  config["task"] = {{"type", id.job}, {"index", id.index}};
  return config.dump();
}

void TestCluster::start(const std::string& task) {
  launch(task);
  const std::optional<Error> failure = await_listener(task, Deadline::after(kStartTimeout));
  if (failure) throw Error(*failure);
}

void TestCluster::launch(const std::string& task) {
  const TaskId id = TaskId::parse(task);
  COHORT_CHECK(!ports_->of_task.at(task).has_listener(), ErrorCode::resource_exhausted,
               "[testing.cluster] expected the port of ", task, " to be free, got ",
               spec_.task_address(id.job, id.index),
               ", where another program listens; end it, or make another TestCluster");
  const std::vector<std::string> environment =
      environment_with({"TF_CONFIG=" + tf_config(task),
                        "COHORT_DATA_DIRS=" + joined(options_.data_dirs), "OMP_NUM_THREADS=1"});
  int pid = 0;
  const int error = run(options_.command, environment, folder_ + "/" + task + ".log", pid);
  COHORT_CHECK(pid >= 0, ErrorCode::resource_exhausted,
               "[testing.cluster] expected a new process for ", task,
               ", got: ", text_of_errno(errno), "; ", kThreadLimitsRemedy);
  if (error != 0) {
    ::waitpid(pid, nullptr, 0);
    const std::string& program = options_.command.front();
    const bool is_there = error == ENOENT && std::filesystem::exists(program);
    internal::throw_error(ErrorCode::not_found, "[testing.cluster] expected a program to run for ",
                          task, ", got '", program, "' (", text_of_errno(error),
                          is_there ? ": the interpreter that its first line names" : "",
                          "); put it on PATH, or give TestClusterOptions::command or "
                          "$COHORT_TEST_SERVER a path");
  }
  pids_[task] = pid;
}

int TestCluster::pid_of(const std::string& task) const {
  const auto found = pids_.find(task);
  COHORT_CHECK(found != pids_.end(), ErrorCode::not_found, "[testing.cluster] no running task '",
               task, "'");
  return found->second;
}

void TestCluster::kill(const std::string& task) {
  const int pid = pid_of(task);
  ::kill(pid, SIGKILL);
  ::waitpid(pid, nullptr, 0);
  pids_.erase(task);
}

void TestCluster::restart(const std::string& task) {
  if (pids_.contains(task)) kill(task);
  start(task);
}

// Waits for the stop, since threads may run for a while after the signal.
void TestCluster::stop(const std::string& task) {
  const int pid = pid_of(task);
  ::kill(pid, SIGSTOP);
  siginfo_t change{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &change, WSTOPPED | WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
}

void TestCluster::resume(const std::string& task) { ::kill(pid_of(task), SIGCONT); }

TaskHealth TestCluster::health(const std::string& task) const {
  const TaskId id = TaskId::parse(task);
  return rpc::control_client(spec_.task_address(id.job, id.index), task)
      ->health(Deadline::after(kCallTimeout));
}

std::string TestCluster::output(const std::string& task) const {
  std::ifstream file(folder_ + "/" + task + ".log");
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

}  // namespace cohort::testing
