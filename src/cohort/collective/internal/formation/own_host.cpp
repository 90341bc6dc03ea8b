// SPDX-License-Identifier: Apache-2.0
#include "cohort/collective/internal/formation/own_host.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <random>

namespace cohort::collective::formation {
namespace {

std::string inode_of(const char* path) {
  struct stat found {};
  if (::stat(path, &found) != 0) return "?" + std::to_string(std::random_device()());
  return std::to_string(found.st_dev) + "." + std::to_string(found.st_ino);
}

}  // namespace

std::string own_host() {
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  if (boot.empty()) boot = "?" + std::to_string(std::random_device()());
  return boot + "/" + inode_of("/proc/self/ns/pid") + "/" + inode_of("/proc/self/ns/user") + "/" +
         std::to_string(::geteuid());
}

}  // namespace cohort::collective::formation
