#include "common/command_line/option_value.h"

#include <algorithm>

namespace maypole {
namespace {

OptionValue Named(std::string name) {
  OptionValue value;
  value.expected = name;
  value.name = std::move(name);
  return value;
}

}  // namespace

Status OptionValue::Read(const std::string& option,
                         const std::string& text) const {
  if (store(text)) return Status();
  return Status(Code::kInvalidArgument,
                option + ": expected " + expected + ", got \"" + text + "\"");
}

OptionValue OptionValue::WithDefault(std::string text) && {
  initial = std::move(text);
  return std::move(*this);
}

OptionValue OptionValue::WithName(std::string text) && {
  name = std::move(text);
  return std::move(*this);
}

OptionValue SwitchValue(bool* out, bool on) {
  OptionValue value;
  value.store = [out, on](const std::string&) {
    *out = on;
    return true;
  };
  return value;
}

OptionValue TextValue(std::string* out, std::string name) {
  OptionValue value = Named(std::move(name));
  value.initial = *out;
  value.store = [out](const std::string& text) {
    *out = text;
    return true;
  };
  return value;
}

OptionValue NameValue(std::string* out, std::string name) {
  OptionValue value = TextValue(out, std::move(name));
  value.expected = "a name";
  value.store = [store = std::move(value.store)](const std::string& text) {
    return !text.empty() && store(text);
  };
  return value;
}

OptionValue FileValue(std::string* out, std::string name) {
  OptionValue value = TextValue(out, std::move(name));
  value.file = true;
  return value;
}

OptionValue OptionalTextValue(bool* given, std::string* out, std::string name) {
  OptionValue value = TextValue(out, std::move(name));
  value.optional = true;
  value.store = [given, store = std::move(value.store)](const std::string& t) {
    *given = true;
    return store(t);
  };
  return value;
}

OptionValue ListValue(std::vector<std::string>* out, std::string name) {
  OptionValue value = Named(std::move(name));
  value.store = [out](const std::string& text) {
    out->clear();
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(',', begin), text.size());
      out->push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return true;
  };
  return value;
}

OptionValue RepeatedValue(std::vector<std::string>* out, std::string name) {
  OptionValue value = Named(std::move(name));
  value.store = [out](const std::string& text) {
    out->push_back(text);
    return true;
  };
  return value;
}

OptionValue ChoiceValue(std::string* out, std::vector<std::string> choices,
                        std::vector<std::string> synonyms) {
  OptionValue value = TextValue(out, "WORD");
  value.expected = JoinedByOr(choices);
  value.choices = choices;
  synonyms.insert(synonyms.end(), choices.begin(), choices.end());
  value.store = [store = std::move(value.store),
                 accepted = std::move(synonyms)](const std::string& text) {
    return std::find(accepted.begin(), accepted.end(), text) !=
               accepted.end() &&
           store(text);
  };
  return value;
}

std::string JoinedByOr(const std::vector<std::string>& words) {
  std::string text;
  for (size_t i = 0; i < words.size(); ++i) {
    if (i > 0) text += i + 1 == words.size() ? " or " : ", ";
    text += words[i];
  }
  return text;
}

OptionValue IntegerWithoutStore(std::string initial, const std::string& least,
                                const std::string& most) {
  OptionValue value;
  value.name = "N";
  value.number = true;
  value.initial = std::move(initial);
  value.expected = most.empty() ? "an integer of at least " + least
                                : "an integer from " + least + " to " + most;
  return value;
}

}  // namespace maypole
