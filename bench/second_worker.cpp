// SPDX-License-Identifier: Apache-2.0
#include "bench/second_worker.h"

#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string_view>

#include "cohort/rpc/reserved_port.h"
#include "cohort/testing/worker_config.h"

namespace cohort::bench {
namespace {

constexpr std::string_view kOption = "--second-worker=";

}  // namespace

TwoWorkers::TwoWorkers(int argc, char** argv, std::size_t num_clusters) : argc_(argc) {
  const std::string_view last = argv[argc - 1];
  if (last.starts_with(kOption)) {
    own_ = 1;
    --argc_;
    store_ = last.substr(kOption.size());
  } else {
    store_ = std::filesystem::temp_directory_path() /
             ("cohort_two_workers_" + std::to_string(::getpid()));
    start(argv, num_clusters);
  }
}

std::string TwoWorkers::config_name(std::size_t cluster) {
  return "COHORT_BENCH_TF_CONFIG_" + std::to_string(cluster);
}

void TwoWorkers::use_cluster(std::size_t cluster) const {
  ::setenv("TF_CONFIG", ::getenv(config_name(cluster).c_str()), 1);
}

void TwoWorkers::wait() const {
  if (own_ == 0) ::waitpid(process_, nullptr, 0);
}

void TwoWorkers::start(char** argv, std::size_t num_clusters) {
  const std::vector<std::array<rpc::ReservedPort, 2>> ports(num_clusters);
  const auto set_configs = [&](int worker) {
    for (std::size_t i = 0; i < num_clusters; ++i) {
      const std::string config =
          testing::tf_config_of(testing::loopback_addresses(ports[i]), worker);
      ::setenv(config_name(i).c_str(), config.c_str(), 1);
    }
  };
  const pid_t parent = ::getpid();
  process_ = ::fork();
  if (process_ == 0) {
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (::getppid() != parent) std::_Exit(1);
    set_configs(1);
    if (std::freopen("/dev/null", "w", stdout) == nullptr) std::_Exit(1);
    std::string option = std::string(kOption) + store_;
    std::vector<char*> words;
    for (char** word = argv; *word != nullptr; ++word) words.push_back(*word);
    words.push_back(option.data());
    words.push_back(nullptr);
    ::execv("/proc/self/exe", words.data());
    std::_Exit(1);
  }
  set_configs(0);
}

}  // namespace cohort::bench
