// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace cohort::collective::formation {

// Equal for two processes if they run on one host, by one user and in the same namespaces, so that
// they can open each other's files in /proc. Different for each process if the system does not say.
std::string own_host();

}  // namespace cohort::collective::formation
