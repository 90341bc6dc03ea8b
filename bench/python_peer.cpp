// SPDX-License-Identifier: Apache-2.0
#include "bench/python_peer.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>

extern char** environ;

namespace cohort::bench {
namespace {

struct Pipe {
  Pipe() { require(::pipe2(ends.data(), O_CLOEXEC) == 0, "a pipe to a peer"); }
  std::array<int, 2> ends{};
};

std::string interpreter_of(const std::string& environment) {
  const char* root = std::getenv("ANCHORS_ROOT");
  return std::string(root == nullptr ? "/tmp/cohort-anchors" : root) + "/" + environment +
         "/bin/python";
}

}  // namespace

std::string PythonPeer::tensorflow() { return interpreter_of("tf"); }

std::string PythonPeer::torch() { return interpreter_of("torch"); }

std::unique_ptr<PythonPeer> PythonPeer::start(const std::string& interpreter,
                                              const std::string& script) {
  if (!std::filesystem::exists(interpreter)) return nullptr;
  return std::make_unique<PythonPeer>(interpreter, script);
}

PythonPeer::PythonPeer(std::vector<std::string> words) {
  const Pipe in;
  const Pipe out;
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in.ends[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out.ends[1], STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  const int code =
      ::posix_spawn(&pid_, arguments.front(), &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  ::close(in.ends[0]);
  ::close(out.ends[1]);
  require(code == 0, "starting " + words.front());
  to_ = ::fdopen(in.ends[1], "w");
  from_ = ::fdopen(out.ends[0], "r");
}

PythonPeer::~PythonPeer() {
  std::fclose(to_);
  std::fclose(from_);
  ::waitpid(pid_, nullptr, 0);
}

double PythonPeer::measure(const std::string& name) {
  std::fprintf(to_, "%s\n", name.c_str());
  std::fflush(to_);
  double figure = 0;
  require(std::fscanf(from_, "%lf", &figure) == 1, "the answer of a peer to " + name);
  return figure;
}

void add_peer(std::vector<Contender>& contenders, PythonPeer* peer, const std::string& title,
              const std::string& name) {
  if (peer == nullptr) return;
  contenders.push_back({title, [peer, name] { return peer->measure(name); }});
}

}  // namespace cohort::bench
