// SPDX-License-Identifier: Apache-2.0
#include "bench/peer_process.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>

#include "bench/report.h"

namespace cohort::bench {
namespace {

using Pipe = std::array<int, 2>;

Pipe make_pipe() {
  Pipe ends{};
  require(::pipe2(ends.data(), O_CLOEXEC) == 0, "a pipe to a peer");
  return ends;
}

}  // namespace

PeerProcess::PeerProcess(const std::vector<std::string>& command) {
  const Pipe in = make_pipe();
  const Pipe out = make_pipe();
  std::vector<char*> arguments;
  for (const std::string& argument : command) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  child_ = ::fork();
  if (child_ == 0) {
    ::dup2(in[0], STDIN_FILENO);
    ::dup2(out[1], STDOUT_FILENO);
    ::execvp(arguments[0], arguments.data());
    ::_exit(127);
  }
  require(child_ > 0, "a process for '" + command[0] + "'");
  ::close(in[0]);
  ::close(out[1]);
  questions_ = ::fdopen(in[1], "w");
  answers_ = ::fdopen(out[0], "r");
}

PeerProcess::~PeerProcess() {
  std::fclose(questions_);
  std::fclose(answers_);
  ::waitpid(child_, nullptr, 0);
}

nlohmann::json PeerProcess::ask(const nlohmann::json& question) {
  std::fprintf(questions_, "%s\n", question.dump().c_str());
  std::fflush(questions_);
  char* line = nullptr;
  std::size_t capacity = 0;
  const ssize_t size = ::getline(&line, &capacity, answers_);
  const std::string answer(line, size > 0 ? static_cast<std::size_t>(size) : 0);
  std::free(line);
  const auto json = nlohmann::json::parse(answer, nullptr, false);
  require(json.is_object(), "a peer answered " + question.dump() + " with '" + answer + "'");
  return json;
}

std::optional<std::string> tensorflow_python() {
  const std::string command = std::string("python3 ") + COHORT_SOURCE_DIR +
                              "/tests/interop/tensorflow_python.py --no-install 2>&1";
  std::FILE* pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  std::string said;
  std::array<char, 512> part{};
  while (std::fgets(part.data(), part.size(), pipe) != nullptr) said += part.data();
  const int status = ::pclose(pipe);
  while (said.ends_with('\n')) said.pop_back();
  if (status == 0) return said;
  std::printf("TensorFlow is not measured. %s\n", said.c_str());
  return std::nullopt;
}

}  // namespace cohort::bench
