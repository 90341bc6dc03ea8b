// SPDX-License-Identifier: Apache-2.0
// text_line: the lines of text files.
#include "cohort/data/files/file_reader.h"
#include "cohort/data/files/line_scanner.h"
#include "cohort/data/graph/op_node.h"

namespace cohort::data {
namespace {

struct TextLineAttributes {
  static constexpr std::string_view kOp = "text_line";
  FileList files = {};
  FileOptions options = {};
  static void describe(auto& visit, auto& all) { describe_files(visit, all); }
};

class TextLineNode final : public FileReaderOp<TextLineNode, TextLineAttributes> {
 public:
  using FileReaderOp::FileReaderOp;

  std::unique_ptr<FileScanner> open(const std::string& path) const override {
    BufferedReader reader = open_reader(path);
    if (file_options().compression == Compression::none) reader.check_is_text(path, op());
    return std::make_unique<LineScanner>(std::move(reader));
  }
};

}  // namespace

NodePtr make_text_line(SerializedOp op) { return TextLineNode::read(op); }

}  // namespace cohort::data

namespace cohort {

Dataset Dataset::text_line(const Dataset& files, FileOptions options) {
  return data::TextLineNode::of(files, options);
}

Dataset Dataset::text_line(StringTensor files, FileOptions options) {
  return data::TextLineNode::of(files, options);
}

}  // namespace cohort
