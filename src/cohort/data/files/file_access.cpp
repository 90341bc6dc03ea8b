// SPDX-License-Identifier: Apache-2.0
#include "cohort/data/files/file_access.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "cohort/core/error.h"
#include "cohort/data/opened_files.h"

namespace cohort::data {
namespace {

namespace fs = std::filesystem;

// Resolves symbolic links in the part of the path that exists.
fs::path resolved(const std::string& path) {
  std::error_code error;
  const fs::path found = fs::weakly_canonical(fs::absolute(path), error);
  return error ? fs::path() : found;
}

bool is_under(const fs::path& path, const fs::path& directory) {
  const auto [end, rest] =
      std::mismatch(directory.begin(), directory.end(), path.begin(), path.end());
  // The last component of "/data/" is empty.
  return end == directory.end() || (std::next(end) == directory.end() && end->empty());
}

std::string listed(const std::vector<std::string>& directories) {
  std::string text;
  for (const std::string& directory : directories) text += (text.empty() ? "" : ", ") + directory;
  return text.empty() ? "none was given" : text;
}

// Where a path leads, if it does not say so itself.
std::string place_of(const std::string& path, const fs::path& found) {
  if (found.empty()) return " (which leads nowhere: a symbolic link to itself?)";
  return found == fs::path(path).lexically_normal() ? "" : " (which is '" + found.string() + "')";
}

}  // namespace

std::string allowed_path(const std::string& path, const IterationOptions& options,
                         std::string_view op) {
  COHORT_CHECK(path.find('\0') == std::string::npos, ErrorCode::invalid_argument, "[data.", op,
               "] expected a path without zero bytes, got '", path.c_str(),
               "' and more after such a byte; correct the path");
  if (!options.data_dirs) return path;
  const fs::path found = resolved(path);
  const bool is_allowed =
      !found.empty() && std::ranges::any_of(*options.data_dirs, [&](const std::string& directory) {
        const fs::path root = resolved(directory);
        return !root.empty() && is_under(found, root);
      });
  COHORT_CHECK(is_allowed, ErrorCode::permission_denied, "[data.", op,
               "] expected a file under this server's data directories (",
               listed(*options.data_dirs), "), got '", path, "'", place_of(path, found),
               "; name its directory with --data DIR of cohort launch or cohort server");
  return found.string();
}

std::vector<std::string> data_dirs_of_environment() {
  std::vector<std::string> dirs;
  const char* const text = std::getenv("COHORT_DATA_DIRS");
  std::istringstream parts(text == nullptr ? "" : text);
  for (std::string dir; std::getline(parts, dir, ':');) {
    if (!dir.empty()) dirs.push_back(dir);
  }
  return dirs;
}

void note_opened(const StageContext& context, const std::string& path, const std::string& found,
                 std::string_view op) {
  if (context.opened_files()) context.opened_files()->note(path, found, op);
}

}  // namespace cohort::data
