// SPDX-License-Identifier: Apache-2.0
#include "cohort/cli/launch/process_activity.h"

#include <dirent.h>
#include <unistd.h>

#include <cctype>
#include <cstdint>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>

namespace cohort::cli {
namespace {

// Adds the process of this line of /proc/PID/stat. The name of the program is in parentheses, and
// may contain spaces and parentheses.
void add_process(const std::string& line, std::map<pid_t, ProcessActivity>& groups) {
  const std::size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return;
  std::istringstream fields(line.substr(end_of_name + 1));
  char state = 0;
  pid_t parent = 0;
  pid_t group = 0;
  fields >> state >> parent >> group;
  std::string skipped;
  for (int i = 0; i < 8; ++i) fields >> skipped;  // session to cmajflt
  std::int64_t ticks = 0;
  for (int i = 0; i < 4; ++i) {  // utime, stime, cutime, cstime
    std::int64_t some = 0;
    fields >> some;
    ticks += some;
  }
  ProcessActivity& sum = groups[group];
  sum.processor_time += std::chrono::milliseconds(ticks * 1000 / ::sysconf(_SC_CLK_TCK));
  sum.is_stopped = sum.is_stopped || state == 'T' || state == 't';
  sum.waits_for_a_disk = sum.waits_for_a_disk || state == 'D';
}

}  // namespace

std::map<pid_t, ProcessActivity> activity_of_groups() {
  std::map<pid_t, ProcessActivity> groups;
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir("/proc"), &::closedir);
  if (!folder) return groups;
  while (const dirent* entry = ::readdir(folder.get())) {
    if (std::isdigit(static_cast<unsigned char>(entry->d_name[0])) == 0) continue;
    std::string line;  // stays empty if the process has ended meanwhile
    std::getline(std::ifstream(std::string("/proc/") + entry->d_name + "/stat"), line);
    add_process(line, groups);
  }
  return groups;
}

}  // namespace cohort::cli
