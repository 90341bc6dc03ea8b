// SPDX-License-Identifier: Apache-2.0
#include "cohort/testing/cluster/test_cluster.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <list>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "cohort/cluster/task_id.h"
#include "cohort/core/error.h"

namespace cohort::testing {
namespace {

constexpr auto kCallTimeout = std::chrono::seconds(20);

std::vector<std::string> default_command() {
  const char* binary = std::getenv("COHORT_TEST_SERVER");
  if (binary != nullptr) return {binary};
  return {"cohort", "server"};
}

// A port that no other program has while this object is there.
class TakenPort {
 public:
  TakenPort() : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    COHORT_CHECK(fd_ >= 0, ErrorCode::resource_exhausted, "[testing.free_port] no socket");
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    if (::bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
        ::getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size) == 0) {
      number_ = ntohs(address.sin_port);
      return;
    }
    ::close(fd_);
    internal::throw_error(ErrorCode::resource_exhausted, "[testing.free_port] no free port");
  }
  ~TakenPort() { ::close(fd_); }
  TakenPort(const TakenPort&) = delete;
  TakenPort& operator=(const TakenPort&) = delete;

  int number() const { return number_; }

 private:
  int fd_;
  int number_ = 0;
};

ClusterSpec make_spec(const TestClusterOptions& options) {
  std::map<std::string, std::vector<std::string>> jobs;
  std::list<TakenPort> ports;  // all at once, or two tasks may get the same
  const auto add = [&](const std::string& job, int count) {
    for (int i = 0; i < count; ++i)
      jobs[job].push_back("127.0.0.1:" + std::to_string(ports.emplace_back().number()));
  };
  add("chief", 1);
  add("worker", options.workers);
  add("ps", options.ps);
  return ClusterSpec(jobs);
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

// Does not return in the child. The error number of a program that cannot be run, or 0.
int run(std::vector<std::string> command, std::vector<std::string> environment,
        const std::string& log, int& pid) {
  const std::vector<char*> argv = pointers(command);
  const std::vector<char*> envp = pointers(environment);
  const int parent = ::getpid();
  int failure[2];  // closed by the new program
  COHORT_CHECK(::pipe2(failure, O_CLOEXEC) == 0, ErrorCode::resource_exhausted,
               "[testing.cluster] no pipe");
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

int free_port() { return TakenPort().number(); }

TestCluster::TestCluster(TestClusterOptions options)
    : options_(std::move(options)), spec_(make_spec(options_)) {
  if (options_.command.empty()) options_.command = default_command();
  std::string pattern = std::filesystem::temp_directory_path() / "cohort-test-XXXXXX";
  COHORT_CHECK(::mkdtemp(pattern.data()) != nullptr, ErrorCode::resource_exhausted,
               "[testing.cluster] no temporary folder");
  folder_ = pattern;
  try {
    start_all();
  } catch (...) {
    end();
    throw;
  }
}

TestCluster::~TestCluster() { end(); }

void TestCluster::start_all() {
  for (const auto& [job, count] :
       {std::pair("ps", options_.ps), std::pair("worker", options_.workers)}) {
    for (int i = 0; i < count; ++i) {
      const std::string task = job + (":" + std::to_string(i));
      const auto& skipped = options_.not_started;
      if (std::find(skipped.begin(), skipped.end(), task) == skipped.end()) start(task);
    }
  }
}

void TestCluster::end() noexcept {
  for (const auto& [task, pid] : pids_) ::kill(pid, SIGKILL);
  for (const auto& [task, pid] : pids_) ::waitpid(pid, nullptr, 0);
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

SimpleResolver TestCluster::resolver() const {
  return SimpleResolver(spec_for("chief:0"), {.task_type = "chief", .task_id = 0});
}

// The cluster as a task sees it: the others behind their proxies.
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
  const std::vector<std::string> environment =
      environment_with({"TF_CONFIG=" + tf_config(task),
                        "COHORT_DATA_DIRS=" + joined(options_.data_dirs), "OMP_NUM_THREADS=1"});
  int pid = 0;
  const int error = run(options_.command, environment, folder_ + "/" + task + ".log", pid);
  COHORT_CHECK(pid >= 0, ErrorCode::resource_exhausted, "[testing.cluster] cannot fork");
  if (error != 0) {
    ::waitpid(pid, nullptr, 0);
    internal::throw_error(ErrorCode::not_found, "[testing.cluster] expected a program to run for ",
                          task, ", got '", options_.command.front(), "' (",
                          std::generic_category().message(error),
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

// Its threads may run on for a while after the signal.
void TestCluster::stop(const std::string& task) {
  const int pid = pid_of(task);
  ::kill(pid, SIGSTOP);
  siginfo_t change{};
  while (::waitid(P_PID, static_cast<id_t>(pid), &change, WSTOPPED | WEXITED | WNOWAIT) != 0 &&
         errno == EINTR) {
  }
}

void TestCluster::resume(const std::string& task) { ::kill(pid_of(task), SIGCONT); }

rpc::Health TestCluster::health(const std::string& task) const {
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
