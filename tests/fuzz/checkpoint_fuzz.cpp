// SPDX-License-Identifier: Apache-2.0
// The folder of a checkpoint: its manifest, with a checksum that fits or not, and a tensor file.
// A tensor that is read is as the manifest says, and a manifest is unchanged after writing and
// reading.
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cohort/checkpoint_files/folder_reader.h"
#include "cohort/checkpoint_files/manifest.h"
#include "cohort/checkpoint_files/manifest_shares.h"
#include "cohort/core/crc32c.h"
#include "tests/fuzz/target.h"

namespace cohort::fuzz {
namespace {

using checkpoint::Manifest;

// A folder of this process, with one tensor file that is written for each input.
class ScratchFolder {
 public:
  ScratchFolder()
      : path_(std::filesystem::temp_directory_path() /
              ("cohort_fuzz_checkpoint_" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(path_);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string path() const { return path_.string(); }
  void write(std::string_view content) const {
    std::ofstream file(path_ / "float32.safetensors", std::ios::binary);
    file.write(content.data(), static_cast<std::streamsize>(content.size()));
  }

 private:
  std::filesystem::path path_;
};

// Otherwise nearly every changed manifest would be refused by its checksum.
std::string with_checksum(std::string_view text) {
  nlohmann::json json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return std::string(text);
  json.erase("crc32c");
  try {
    json["crc32c"] = crc32c(json.dump());
    return json.dump();
  } catch (const nlohmann::json::exception&) {  // no UTF-8
    return std::string(text);
  }
}

void run(Input input) {
  static const ScratchFolder folder;
  const bool fits = (input.byte() & 1) != 0;
  const std::size_t low = input.byte();
  const std::string_view given = input.take(low | (std::size_t{input.byte()} << 8U));
  const std::string text = fits ? with_checksum(given) : std::string(given);
  folder.write(input.rest());
  only_fails_with({ErrorCode::data_loss, ErrorCode::unimplemented}, [&] {
    const Manifest share = checkpoint::parse_share(text, "ps:0");
    Manifest whole;
    for (int i = 0; i < 2; ++i) checkpoint::add_tensors_of_share(whole, share, "ps:0");
    checkpoint::order_rows(whole);
  });
  std::optional<Manifest> manifest;
  if (!only_fails_with({ErrorCode::data_loss, ErrorCode::unimplemented},
                       [&] { manifest = checkpoint::parse_manifest(text, "manifest.json"); }))
    return;
  const std::string again = encode(*manifest);
  require(encode(checkpoint::parse_manifest(again, "again")) == again, "a manifest has changed");
  checkpoint::FolderReader reader(folder.path(), *manifest);
  for (const auto& tensor : manifest->tensors) {
    // A file that the manifest names may be missing.
    only_fails_with({ErrorCode::data_loss, ErrorCode::not_found, ErrorCode::unimplemented}, [&] {
      require(reader.read(tensor.first).sizes() == at::IntArrayRef(*tensor.second.spec.sizes),
              "a tensor has other sizes than the manifest says");
    });
  }
}

}  // namespace
}  // namespace cohort::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  cohort::fuzz::run({data, size});
  return 0;
}
