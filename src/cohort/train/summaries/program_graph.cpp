// SPDX-License-Identifier: Apache-2.0
#include "cohort/train/summaries/program_graph.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cohort/core/error.h"

namespace cohort::train {
namespace {

constexpr int kProducer = 22;  // the version of graphs that PyTorch's SummaryWriter writes

// These change the variable whose number is their first integer.
constexpr std::array<std::string_view, 8> kChangesVariable = {
    "cohort::apply",       "cohort::apply_rows",         "cohort::assign",
    "cohort::assign_add",  "cohort::assign_sub",         "cohort::merge_average",
    "cohort::scatter_add", "cohort::wait_until_positive"};

bool is_digit(char c) { return c >= '0' && c <= '9'; }

[[noreturn]] void refuse_line(std::string_view line) {
  internal::throw_error(
      ErrorCode::invalid_argument,
      "[train.summary_writer] expected the text of Function::program() for graph(), got the line '",
      line.substr(0, 200), "'; pass step.program() of a step that was called or scheduled once");
}

// The number at the beginning of `text`; refuses `line` if there is none.
std::int64_t number_at(std::string_view text, std::string_view line) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc()) refuse_line(line);
  return number;
}

// Calls `visit` for each character outside of quotes, with its position.
template <class Visit>
void for_each_unquoted(std::string_view text, const Visit& visit) {
  bool is_quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '"') is_quoted = !is_quoted;
    if (!is_quoted) visit(i);
  }
}

// The values "%7" in a text.
std::vector<std::int64_t> values_in(std::string_view text, std::string_view line) {
  std::vector<std::int64_t> values;
  for_each_unquoted(text, [&](std::size_t i) {
    if (text[i] == '%' && i + 1 < text.size() && is_digit(text[i + 1]))
      values.push_back(number_at(text.substr(i + 1), line));
  });
  return values;
}

// The parts between commas that are in no brackets.
std::vector<std::string_view> parts_between_commas(std::string_view text) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  int depth = 0;
  for_each_unquoted(text, [&](std::size_t i) {
    if (text[i] == '[' || text[i] == '(') ++depth;
    if (text[i] == ']' || text[i] == ')') --depth;
    if (text[i] != ',' || depth != 0) return;
    parts.push_back(text.substr(begin, i - begin));
    begin = i + 1;
  });
  if (begin < text.size()) parts.push_back(text.substr(begin));
  for (std::string_view& part : parts)
    part.remove_prefix(std::min(part.find_first_not_of(' '), part.size()));
  return parts;
}

// TensorFlow's rule for names of nodes.
std::string allowed_name(std::string_view wanted) {
  std::string name(wanted);
  for (char& c : name) {
    const bool is_allowed = std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' ||
                            c == '.' || c == '/' || c == '-';
    if (!is_allowed) c = '_';
  }
  if (name.empty() || std::isalnum(static_cast<unsigned char>(name.front())) == 0)
    name.insert(0, "n");
  return name;
}

// Fills a graph line by line. Used for one program.
class GraphReader {
 public:
  void read(std::string_view line) {
    if (line.starts_with('%')) return read_source(line);
    if (line.starts_with('#')) return read_operator(line);
    if (!line.starts_with("return")) refuse_line(line);
    proto::NodeDef& node = add("return", "return", "");
    use(values_in(line, line), node);
    has_end_ = true;
  }
  bool has_end() const { return has_end_; }
  proto::GraphDef take() {
    graph_.mutable_versions()->set_producer(kProducer);
    return std::move(graph_);
  }

 private:
  proto::NodeDef& add(std::string_view wanted, std::string_view op, std::string_view text) {
    const std::string name = allowed_name(wanted);
    std::string unique = name;
    for (int i = 1; !names_.insert(unique).second; ++i) unique = name + "_" + std::to_string(i);
    proto::NodeDef& node = *graph_.add_node();
    node.set_name(unique);
    node.set_op(std::string(op));
    if (!text.empty()) (*node.mutable_attr())["program"].set_s(std::string(text));
    return node;
  }

  void use(const std::vector<std::int64_t>& values, proto::NodeDef& by) const {
    for (const std::int64_t value : values) {
      const auto found = made_by_.find(value);
      if (found != made_by_.end()) by.add_input(found->second);
    }
  }

  // "%3 = input: float32[4, 3]", "%3 = variable #0 'w': float32[3]", "%3 = constant: …"
  void read_source(std::string_view line) {
    const std::int64_t value = number_at(line.substr(1), line);
    const std::size_t equals = line.find(" = ");
    if (equals == std::string_view::npos) refuse_line(line);
    const std::string_view text = line.substr(equals + 3);
    const std::string number = std::to_string(value);
    std::size_t spec = text.find(": ");
    proto::NodeDef* node = nullptr;
    if (text.starts_with("input: ")) {
      node = &add("input_" + number, "input", text);
    } else if (text.starts_with("constant: ")) {
      node = &add("constant_" + number, "constant", text);
    } else if (text.starts_with("variable #")) {
      const std::size_t begin = text.find('\''), end = text.rfind("': ");
      if (end == std::string_view::npos || begin >= end) refuse_line(line);
      node = &add(text.substr(begin + 1, end - begin - 1), "variable", text);
      variables_.push_back(node->name());
      variable_nodes_.emplace(text.substr(begin + 1, end - begin - 1), node->name());
      spec = end + 1;
    } else {
      refuse_line(line);
    }
    set_shapes(text.substr(spec + 2), *node);
    made_by_[value] = node->name();
  }

  // "#2 %4 = aten::sum.dim_IntList(%3, [0], false): float32[3]", "#3 cohort::assign_add(0, %4)"
  void read_operator(std::string_view line) {
    const std::size_t scope = line.find("::");
    const std::size_t open = line.find('(', scope);
    if (scope == std::string_view::npos || open == std::string_view::npos) refuse_line(line);
    const std::size_t begin = line.rfind(' ', scope) + 1;
    std::size_t close = std::string_view::npos;
    int depth = 0;
    for_each_unquoted(line, [&](std::size_t i) {
      if (i < open || close != std::string_view::npos) return;
      if (line[i] == '(') ++depth;
      if (line[i] == ')' && --depth == 0) close = i;
    });
    if (close == std::string_view::npos) refuse_line(line);
    const std::string_view op = line.substr(begin, open - begin);
    const std::string_view arguments = line.substr(open + 1, close - open - 1);
    const std::string_view base = op.substr(op.rfind(':') + 1);
    proto::NodeDef& node = add(std::string(base.substr(0, base.find('.'))) + "_" +
                                   std::to_string(number_at(line.substr(1), line)),
                               op, line);
    use_changed_variable(op.substr(0, op.find('.')), arguments, node);
    use(values_in(arguments, line), node);
    if (line.substr(close + 1).starts_with(": ")) set_shapes(line.substr(close + 3), node);
    int number = 0;
    for (const std::int64_t value : values_in(line.substr(0, begin), line)) {
      made_by_[value] = node.name() + (number == 0 ? "" : ":" + std::to_string(number));
      ++number;
    }
  }

  void use_changed_variable(std::string_view op, std::string_view arguments,
                            proto::NodeDef& node) const {
    // Replicas change variables in a call: cohort::call("assign_add(model/w)", 0, [%4]).
    if (op == "cohort::call") {
      const std::size_t open = arguments.find('('), close = arguments.find(")\"");
      if (open >= close || close == std::string_view::npos) return;
      const auto found =
          variable_nodes_.find(std::string(arguments.substr(open + 1, close - open - 1)));
      if (found != variable_nodes_.end()) node.add_input(found->second);
      return;
    }
    if (std::find(kChangesVariable.begin(), kChangesVariable.end(), op) == kChangesVariable.end())
      return;
    for (const std::string_view argument : parts_between_commas(arguments)) {
      if (argument.empty() || !is_digit(argument.front())) continue;
      const auto variable = static_cast<std::size_t>(number_at(argument, argument));
      if (variable < variables_.size()) node.add_input(variables_[variable]);
      return;
    }
  }

  // "float32[4, ?], ?": also as TensorFlow's shapes, which TensorBoard writes at the edges.
  static void set_shapes(std::string_view specs, proto::NodeDef& node) {
    proto::AttrValue::ListValue& list = *(*node.mutable_attr())["_output_shapes"].mutable_list();
    for (const std::string_view spec : parts_between_commas(specs)) {
      const std::size_t open = spec.find('['), close = spec.find(']');
      if (close == std::string_view::npos && spec != "?") continue;  // ", not read"
      proto::TensorShapeProto& shape = *list.add_shape();
      shape.set_unknown_rank(close == std::string_view::npos);
      if (shape.unknown_rank()) continue;
      for (const std::string_view size :
           parts_between_commas(spec.substr(open + 1, close - open - 1)))
        shape.add_dim()->set_size(is_digit(size.front()) ? number_at(size, spec) : -1);
    }
  }

  proto::GraphDef graph_;
  std::set<std::string> names_;
  std::vector<std::string> variables_;                 // names of nodes, by number
  std::map<std::string, std::string> variable_nodes_;  // and by name
  std::map<std::int64_t, std::string> made_by_;        // by value: "mm_3", or "topk_4:1"
  bool has_end_ = false;
};

}  // namespace

proto::GraphDef graph_of_program(std::string_view listing) {
  GraphReader reader;
  while (!listing.empty()) {
    const std::size_t end = std::min(listing.find('\n'), listing.size());
    const std::string_view line = listing.substr(0, end);
    listing.remove_prefix(std::min(end + 1, listing.size()));
    if (line.empty()) continue;
    line.starts_with("program ") ? void(reader = GraphReader()) : reader.read(line);
  }
  COHORT_CHECK(reader.has_end(), ErrorCode::invalid_argument,
               "[train.summary_writer] expected the text of Function::program() for graph(), got "
               "a text without the line 'return'; pass step.program() of a step that was called or "
               "scheduled once");
  return reader.take();
}

}  // namespace cohort::train
