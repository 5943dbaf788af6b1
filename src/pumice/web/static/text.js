// node_modules/@huggingface/jinja/dist/index.js
var __defProp = Object.defineProperty, __defNormalProp = (obj, key, value) => key in obj ? __defProp(obj, key, { enumerable: !0, configurable: !0, writable: !0, value }) : obj[key] = value, __publicField = (obj, key, value) => (__defNormalProp(obj, typeof key != "symbol" ? key + "" : key, value), value), TOKEN_TYPES = Object.freeze({
  Text: "Text",
  // The text between Jinja statements or expressions
  NumericLiteral: "NumericLiteral",
  // e.g., 123, 1.0
  StringLiteral: "StringLiteral",
  // 'string'
  Identifier: "Identifier",
  // Variables, functions, statements, booleans, etc.
  Equals: "Equals",
  // =
  OpenParen: "OpenParen",
  // (
  CloseParen: "CloseParen",
  // )
  OpenStatement: "OpenStatement",
  // {%
  CloseStatement: "CloseStatement",
  // %}
  OpenExpression: "OpenExpression",
  // {{
  CloseExpression: "CloseExpression",
  // }}
  OpenSquareBracket: "OpenSquareBracket",
  // [
  CloseSquareBracket: "CloseSquareBracket",
  // ]
  OpenCurlyBracket: "OpenCurlyBracket",
  // {
  CloseCurlyBracket: "CloseCurlyBracket",
  // }
  Comma: "Comma",
  // ,
  Dot: "Dot",
  // .
  Colon: "Colon",
  // :
  Pipe: "Pipe",
  // |
  CallOperator: "CallOperator",
  // ()
  AdditiveBinaryOperator: "AdditiveBinaryOperator",
  // + - ~
  MultiplicativeBinaryOperator: "MultiplicativeBinaryOperator",
  // * / // %
  ExponentiationBinaryOperator: "ExponentiationBinaryOperator",
  // **
  ComparisonBinaryOperator: "ComparisonBinaryOperator",
  // < > <= >= == !=
  UnaryOperator: "UnaryOperator",
  // ! - +
  Comment: "Comment"
  // {# ... #}
}), Token = class {
  /**
   * Constructs a new Token.
   * @param {string} value The raw value as seen inside the source code.
   * @param {TokenType} type The type of token.
   */
  constructor(value, type) {
    this.value = value, this.type = type;
  }
};
function isWord(char) {
  return /\w/.test(char);
}
function isInteger(char) {
  return /[0-9]/.test(char);
}
function isWhitespace(char) {
  return /\s/.test(char);
}
var ORDERED_MAPPING_TABLE = [
  // Control sequences
  ["{%", TOKEN_TYPES.OpenStatement],
  ["%}", TOKEN_TYPES.CloseStatement],
  ["{{", TOKEN_TYPES.OpenExpression],
  ["}}", TOKEN_TYPES.CloseExpression],
  // Single character tokens
  ["(", TOKEN_TYPES.OpenParen],
  [")", TOKEN_TYPES.CloseParen],
  ["{", TOKEN_TYPES.OpenCurlyBracket],
  ["}", TOKEN_TYPES.CloseCurlyBracket],
  ["[", TOKEN_TYPES.OpenSquareBracket],
  ["]", TOKEN_TYPES.CloseSquareBracket],
  [",", TOKEN_TYPES.Comma],
  [".", TOKEN_TYPES.Dot],
  [":", TOKEN_TYPES.Colon],
  ["|", TOKEN_TYPES.Pipe],
  // Comparison operators
  ["<=", TOKEN_TYPES.ComparisonBinaryOperator],
  [">=", TOKEN_TYPES.ComparisonBinaryOperator],
  ["==", TOKEN_TYPES.ComparisonBinaryOperator],
  ["!=", TOKEN_TYPES.ComparisonBinaryOperator],
  ["<", TOKEN_TYPES.ComparisonBinaryOperator],
  [">", TOKEN_TYPES.ComparisonBinaryOperator],
  // Arithmetic operators
  ["+", TOKEN_TYPES.AdditiveBinaryOperator],
  ["-", TOKEN_TYPES.AdditiveBinaryOperator],
  ["~", TOKEN_TYPES.AdditiveBinaryOperator],
  ["**", TOKEN_TYPES.ExponentiationBinaryOperator],
  // NOTE: must come before "*" so that "**" is matched first
  ["*", TOKEN_TYPES.MultiplicativeBinaryOperator],
  ["//", TOKEN_TYPES.MultiplicativeBinaryOperator],
  // NOTE: must come before "/" so that "//" is matched first
  ["/", TOKEN_TYPES.MultiplicativeBinaryOperator],
  ["%", TOKEN_TYPES.MultiplicativeBinaryOperator],
  // Assignment operator
  ["=", TOKEN_TYPES.Equals]
], ESCAPE_CHARACTERS = new Map([
  ["n", `
`],
  // New line
  ["t", "	"],
  // Horizontal tab
  ["r", "\r"],
  // Carriage return
  ["b", "\b"],
  // Backspace
  ["f", "\f"],
  // Form feed
  ["v", "\v"],
  // Vertical tab
  ["'", "'"],
  // Single quote
  ['"', '"'],
  // Double quote
  ["\\", "\\"]
  // Backslash
]);
function preprocess(template, options = {}) {
  return template.endsWith(`
`) && (template = template.slice(0, -1)), options.lstrip_blocks && (template = template.replace(/^[ \t]*({[#%-])/gm, "$1")), options.trim_blocks && (template = template.replace(/([#%-]})\n/g, "$1")), template.replace(
    /(\s*){%(-?)\s*(?:end)?generation\s*(-?)%}(\s*)/gs,
    (_, before, lstrip, rstrip, after) => (lstrip ? "" : before) + (rstrip ? "" : after)
  );
}
function tokenize(source, options = {}) {
  let tokens = [], src = preprocess(source, options), cursorPosition = 0, curlyBracketDepth = 0, consumeWhile = (predicate) => {
    let str = "";
    for (; predicate(src[cursorPosition]); ) {
      if (src[cursorPosition] === "\\") {
        if (++cursorPosition, cursorPosition >= src.length)
          throw new SyntaxError("Unexpected end of input");
        let escaped = src[cursorPosition++], unescaped = ESCAPE_CHARACTERS.get(escaped);
        if (unescaped === void 0)
          throw new SyntaxError(`Unexpected escaped character: ${escaped}`);
        str += unescaped;
        continue;
      }
      if (str += src[cursorPosition++], cursorPosition >= src.length)
        throw new SyntaxError("Unexpected end of input");
    }
    return str;
  }, stripTrailingWhitespace = () => {
    let lastToken = tokens.at(-1);
    lastToken && lastToken.type === TOKEN_TYPES.Text && (lastToken.value = lastToken.value.trimEnd(), lastToken.value === "" && tokens.pop());
  }, skipLeadingWhitespace = () => {
    for (; cursorPosition < src.length && isWhitespace(src[cursorPosition]); )
      ++cursorPosition;
  };
  main:
    for (; cursorPosition < src.length; ) {
      let lastTokenType = tokens.at(-1)?.type;
      if (lastTokenType === void 0 || lastTokenType === TOKEN_TYPES.CloseStatement || lastTokenType === TOKEN_TYPES.CloseExpression || lastTokenType === TOKEN_TYPES.Comment) {
        let text = "";
        for (; cursorPosition < src.length && // Keep going until we hit the next Jinja statement or expression
        !(src[cursorPosition] === "{" && (src[cursorPosition + 1] === "%" || src[cursorPosition + 1] === "{" || src[cursorPosition + 1] === "#")); )
          text += src[cursorPosition++];
        if (text.length > 0) {
          tokens.push(new Token(text, TOKEN_TYPES.Text));
          continue;
        }
      }
      if (src[cursorPosition] === "{" && src[cursorPosition + 1] === "#") {
        cursorPosition += 2;
        let stripBefore = src[cursorPosition] === "-";
        stripBefore && ++cursorPosition;
        let comment = "";
        for (; src[cursorPosition] !== "#" || src[cursorPosition + 1] !== "}"; ) {
          if (cursorPosition + 2 >= src.length)
            throw new SyntaxError("Missing end of comment tag");
          comment += src[cursorPosition++];
        }
        let stripAfter = comment.endsWith("-");
        stripAfter && (comment = comment.slice(0, -1)), stripBefore && stripTrailingWhitespace(), tokens.push(new Token(comment, TOKEN_TYPES.Comment)), cursorPosition += 2, stripAfter && skipLeadingWhitespace();
        continue;
      }
      if (src.slice(cursorPosition, cursorPosition + 3) === "{%-") {
        stripTrailingWhitespace(), tokens.push(new Token("{%", TOKEN_TYPES.OpenStatement)), cursorPosition += 3;
        continue;
      }
      if (src.slice(cursorPosition, cursorPosition + 3) === "{{-") {
        stripTrailingWhitespace(), tokens.push(new Token("{{", TOKEN_TYPES.OpenExpression)), curlyBracketDepth = 0, cursorPosition += 3;
        continue;
      }
      if (consumeWhile(isWhitespace), src.slice(cursorPosition, cursorPosition + 3) === "-%}") {
        tokens.push(new Token("%}", TOKEN_TYPES.CloseStatement)), cursorPosition += 3, skipLeadingWhitespace();
        continue;
      }
      if (src.slice(cursorPosition, cursorPosition + 3) === "-}}") {
        tokens.push(new Token("}}", TOKEN_TYPES.CloseExpression)), cursorPosition += 3, skipLeadingWhitespace();
        continue;
      }
      let char = src[cursorPosition];
      if (char === "-" || char === "+") {
        let lastTokenType2 = tokens.at(-1)?.type;
        if (lastTokenType2 === TOKEN_TYPES.Text || lastTokenType2 === void 0)
          throw new SyntaxError(`Unexpected character: ${char}`);
        switch (lastTokenType2) {
          case TOKEN_TYPES.Identifier:
          case TOKEN_TYPES.NumericLiteral:
          case TOKEN_TYPES.StringLiteral:
          case TOKEN_TYPES.CloseParen:
          case TOKEN_TYPES.CloseSquareBracket:
            break;
          default: {
            ++cursorPosition;
            let num = consumeWhile(isInteger);
            if (num.length > 0 && src[cursorPosition] === "." && isInteger(src[cursorPosition + 1])) {
              ++cursorPosition;
              let frac = consumeWhile(isInteger);
              num = `${num}.${frac}`;
            }
            tokens.push(
              new Token(`${char}${num}`, num.length > 0 ? TOKEN_TYPES.NumericLiteral : TOKEN_TYPES.UnaryOperator)
            );
            continue;
          }
        }
      }
      for (let [seq, type] of ORDERED_MAPPING_TABLE) {
        if (seq === "}}" && curlyBracketDepth > 0)
          continue;
        if (src.slice(cursorPosition, cursorPosition + seq.length) === seq) {
          tokens.push(new Token(seq, type)), type === TOKEN_TYPES.OpenExpression ? curlyBracketDepth = 0 : type === TOKEN_TYPES.OpenCurlyBracket ? ++curlyBracketDepth : type === TOKEN_TYPES.CloseCurlyBracket && --curlyBracketDepth, cursorPosition += seq.length;
          continue main;
        }
      }
      if (char === "'" || char === '"') {
        ++cursorPosition;
        let str = consumeWhile((c) => c !== char);
        tokens.push(new Token(str, TOKEN_TYPES.StringLiteral)), ++cursorPosition;
        continue;
      }
      if (isInteger(char)) {
        let num = consumeWhile(isInteger);
        if (tokens.at(-1)?.type !== TOKEN_TYPES.Dot && src[cursorPosition] === "." && isInteger(src[cursorPosition + 1])) {
          ++cursorPosition;
          let frac = consumeWhile(isInteger);
          num = `${num}.${frac}`;
        }
        tokens.push(new Token(num, TOKEN_TYPES.NumericLiteral));
        continue;
      }
      if (isWord(char)) {
        let word = consumeWhile(isWord);
        tokens.push(new Token(word, TOKEN_TYPES.Identifier));
        continue;
      }
      throw new SyntaxError(`Unexpected character: ${char}`);
    }
  return tokens;
}
var Statement = class {
  type = "Statement";
}, Program = class extends Statement {
  constructor(body) {
    super(), this.body = body;
  }
  type = "Program";
}, If = class extends Statement {
  constructor(test, body, alternate) {
    super(), this.test = test, this.body = body, this.alternate = alternate;
  }
  type = "If";
}, For = class extends Statement {
  constructor(loopvar, iterable, body, defaultBlock) {
    super(), this.loopvar = loopvar, this.iterable = iterable, this.body = body, this.defaultBlock = defaultBlock;
  }
  type = "For";
}, Break = class extends Statement {
  type = "Break";
}, Continue = class extends Statement {
  type = "Continue";
}, SetStatement = class extends Statement {
  constructor(assignee, value, body) {
    super(), this.assignee = assignee, this.value = value, this.body = body;
  }
  type = "Set";
}, Macro = class extends Statement {
  constructor(name, args, body) {
    super(), this.name = name, this.args = args, this.body = body;
  }
  type = "Macro";
}, Comment = class extends Statement {
  constructor(value) {
    super(), this.value = value;
  }
  type = "Comment";
}, Expression = class extends Statement {
  type = "Expression";
}, MemberExpression = class extends Expression {
  constructor(object, property, computed) {
    super(), this.object = object, this.property = property, this.computed = computed;
  }
  type = "MemberExpression";
}, CallExpression = class extends Expression {
  constructor(callee, args) {
    super(), this.callee = callee, this.args = args;
  }
  type = "CallExpression";
}, Identifier = class extends Expression {
  /**
   * @param {string} value The name of the identifier
   */
  constructor(value) {
    super(), this.value = value;
  }
  type = "Identifier";
}, Literal = class extends Expression {
  constructor(value) {
    super(), this.value = value;
  }
  type = "Literal";
}, IntegerLiteral = class extends Literal {
  type = "IntegerLiteral";
}, FloatLiteral = class extends Literal {
  type = "FloatLiteral";
}, StringLiteral = class extends Literal {
  type = "StringLiteral";
}, ArrayLiteral = class extends Literal {
  type = "ArrayLiteral";
}, TupleLiteral = class extends Literal {
  type = "TupleLiteral";
}, ObjectLiteral = class extends Literal {
  type = "ObjectLiteral";
}, BinaryExpression = class extends Expression {
  constructor(operator, left, right) {
    super(), this.operator = operator, this.left = left, this.right = right;
  }
  type = "BinaryExpression";
}, FilterExpression = class extends Expression {
  constructor(operand, filter) {
    super(), this.operand = operand, this.filter = filter;
  }
  type = "FilterExpression";
}, FilterStatement = class extends Statement {
  constructor(filter, body) {
    super(), this.filter = filter, this.body = body;
  }
  type = "FilterStatement";
}, SelectExpression = class extends Expression {
  constructor(lhs, test) {
    super(), this.lhs = lhs, this.test = test;
  }
  type = "SelectExpression";
}, TestExpression = class extends Expression {
  constructor(operand, negate, test) {
    super(), this.operand = operand, this.negate = negate, this.test = test;
  }
  type = "TestExpression";
}, UnaryExpression = class extends Expression {
  constructor(operator, argument) {
    super(), this.operator = operator, this.argument = argument;
  }
  type = "UnaryExpression";
}, SliceExpression = class extends Expression {
  constructor(start = void 0, stop = void 0, step = void 0) {
    super(), this.start = start, this.stop = stop, this.step = step;
  }
  type = "SliceExpression";
}, KeywordArgumentExpression = class extends Expression {
  constructor(key, value) {
    super(), this.key = key, this.value = value;
  }
  type = "KeywordArgumentExpression";
}, SpreadExpression = class extends Expression {
  constructor(argument) {
    super(), this.argument = argument;
  }
  type = "SpreadExpression";
}, KeywordSpreadExpression = class extends Expression {
  constructor(argument) {
    super(), this.argument = argument;
  }
  type = "KeywordSpreadExpression";
}, CallStatement = class extends Statement {
  constructor(call, callerArgs, body) {
    super(), this.call = call, this.callerArgs = callerArgs, this.body = body;
  }
  type = "CallStatement";
}, Ternary = class extends Expression {
  constructor(condition, trueExpr, falseExpr) {
    super(), this.condition = condition, this.trueExpr = trueExpr, this.falseExpr = falseExpr;
  }
  type = "Ternary";
};
function parse(tokens) {
  let program = new Program([]), current = 0;
  function expect(type, error) {
    let prev = tokens[current++];
    if (!prev || prev.type !== type)
      throw new Error(`Parser Error: ${error}. ${prev.type} !== ${type}.`);
    return prev;
  }
  function expectIdentifier(name) {
    if (!isIdentifier(name))
      throw new SyntaxError(`Expected ${name}`);
    ++current;
  }
  function parseAny() {
    switch (tokens[current].type) {
      case TOKEN_TYPES.Comment:
        return new Comment(tokens[current++].value);
      case TOKEN_TYPES.Text:
        return parseText();
      case TOKEN_TYPES.OpenStatement:
        return parseJinjaStatement();
      case TOKEN_TYPES.OpenExpression:
        return parseJinjaExpression();
      default:
        throw new SyntaxError(`Unexpected token type: ${tokens[current].type}`);
    }
  }
  function is(...types) {
    return current + types.length <= tokens.length && types.every((type, i) => type === tokens[current + i].type);
  }
  function isStatement(...names) {
    return tokens[current]?.type === TOKEN_TYPES.OpenStatement && tokens[current + 1]?.type === TOKEN_TYPES.Identifier && names.includes(tokens[current + 1]?.value);
  }
  function isIdentifier(...names) {
    return current + names.length <= tokens.length && names.every((name, i) => tokens[current + i].type === "Identifier" && name === tokens[current + i].value);
  }
  function parseText() {
    return new StringLiteral(expect(TOKEN_TYPES.Text, "Expected text token").value);
  }
  function parseJinjaStatement() {
    if (expect(TOKEN_TYPES.OpenStatement, "Expected opening statement token"), tokens[current].type !== TOKEN_TYPES.Identifier)
      throw new SyntaxError(`Unknown statement, got ${tokens[current].type}`);
    let name = tokens[current].value, result;
    switch (name) {
      case "set":
        ++current, result = parseSetStatement();
        break;
      case "if":
        ++current, result = parseIfStatement(), expect(TOKEN_TYPES.OpenStatement, "Expected {% token"), expectIdentifier("endif"), expect(TOKEN_TYPES.CloseStatement, "Expected %} token");
        break;
      case "macro":
        ++current, result = parseMacroStatement(), expect(TOKEN_TYPES.OpenStatement, "Expected {% token"), expectIdentifier("endmacro"), expect(TOKEN_TYPES.CloseStatement, "Expected %} token");
        break;
      case "for":
        ++current, result = parseForStatement(), expect(TOKEN_TYPES.OpenStatement, "Expected {% token"), expectIdentifier("endfor"), expect(TOKEN_TYPES.CloseStatement, "Expected %} token");
        break;
      case "call": {
        ++current;
        let callerArgs = null;
        is(TOKEN_TYPES.OpenParen) && (callerArgs = parseArgs("parameters"));
        let callee = parsePrimaryExpression();
        if (callee.type !== "Identifier")
          throw new SyntaxError("Expected identifier following call statement");
        let callArgs = parseArgs("call");
        expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token");
        let body = [];
        for (; !isStatement("endcall"); )
          body.push(parseAny());
        expect(TOKEN_TYPES.OpenStatement, "Expected '{%'"), expectIdentifier("endcall"), expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token");
        let callExpr = new CallExpression(callee, callArgs);
        result = new CallStatement(callExpr, callerArgs, body);
        break;
      }
      case "break":
        ++current, expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token"), result = new Break();
        break;
      case "continue":
        ++current, expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token"), result = new Continue();
        break;
      case "filter": {
        ++current;
        let filterNode = parsePrimaryExpression();
        filterNode instanceof Identifier && is(TOKEN_TYPES.OpenParen) && (filterNode = parseCallExpression(filterNode)), expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token");
        let filterBody = [];
        for (; !isStatement("endfilter"); )
          filterBody.push(parseAny());
        expect(TOKEN_TYPES.OpenStatement, "Expected '{%'"), expectIdentifier("endfilter"), expect(TOKEN_TYPES.CloseStatement, "Expected '%}'"), result = new FilterStatement(filterNode, filterBody);
        break;
      }
      default:
        throw new SyntaxError(`Unknown statement type: ${name}`);
    }
    return result;
  }
  function parseJinjaExpression() {
    expect(TOKEN_TYPES.OpenExpression, "Expected opening expression token");
    let result = parseExpression();
    return expect(TOKEN_TYPES.CloseExpression, "Expected closing expression token"), result;
  }
  function parseSetStatement() {
    let left = parseExpressionSequence(), value = null, body = [];
    if (is(TOKEN_TYPES.Equals))
      ++current, value = parseExpressionSequence();
    else {
      for (expect(TOKEN_TYPES.CloseStatement, "Expected %} token"); !isStatement("endset"); )
        body.push(parseAny());
      expect(TOKEN_TYPES.OpenStatement, "Expected {% token"), expectIdentifier("endset");
    }
    return expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token"), new SetStatement(left, value, body);
  }
  function parseIfStatement() {
    let test = parseExpression();
    expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token");
    let body = [], alternate = [];
    for (; !isStatement("elif", "else", "endif"); )
      body.push(parseAny());
    if (isStatement("elif")) {
      ++current, ++current;
      let result = parseIfStatement();
      alternate.push(result);
    } else if (isStatement("else"))
      for (++current, ++current, expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token"); !isStatement("endif"); )
        alternate.push(parseAny());
    return new If(test, body, alternate);
  }
  function parseMacroStatement() {
    let name = parsePrimaryExpression();
    if (name.type !== "Identifier")
      throw new SyntaxError("Expected identifier following macro statement");
    let args = parseArgs("parameters");
    expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token");
    let body = [];
    for (; !isStatement("endmacro"); )
      body.push(parseAny());
    return new Macro(name, args, body);
  }
  function parseExpressionSequence(primary = !1) {
    let fn = primary ? parsePrimaryExpression : parseExpression, expressions = [fn()], isTuple = is(TOKEN_TYPES.Comma);
    for (; isTuple && (++current, expressions.push(fn()), !!is(TOKEN_TYPES.Comma)); )
      ;
    return isTuple ? new TupleLiteral(expressions) : expressions[0];
  }
  function parseForStatement() {
    let loopVariable = parseExpressionSequence(!0);
    if (!(loopVariable instanceof Identifier || loopVariable instanceof TupleLiteral))
      throw new SyntaxError(`Expected identifier/tuple for the loop variable, got ${loopVariable.type} instead`);
    if (!isIdentifier("in"))
      throw new SyntaxError("Expected `in` keyword following loop variable");
    ++current;
    let iterable = parseExpression();
    expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token");
    let body = [];
    for (; !isStatement("endfor", "else"); )
      body.push(parseAny());
    let alternative = [];
    if (isStatement("else"))
      for (++current, ++current, expect(TOKEN_TYPES.CloseStatement, "Expected closing statement token"); !isStatement("endfor"); )
        alternative.push(parseAny());
    return new For(loopVariable, iterable, body, alternative);
  }
  function parseExpression() {
    return parseIfExpression();
  }
  function parseIfExpression() {
    let a = parseLogicalOrExpression();
    if (isIdentifier("if")) {
      ++current;
      let test = parseLogicalOrExpression();
      if (isIdentifier("else")) {
        ++current;
        let falseExpr = parseIfExpression();
        return new Ternary(test, a, falseExpr);
      } else
        return new SelectExpression(a, test);
    }
    return a;
  }
  function parseLogicalOrExpression() {
    let left = parseLogicalAndExpression();
    for (; isIdentifier("or"); ) {
      let operator = tokens[current];
      ++current;
      let right = parseLogicalAndExpression();
      left = new BinaryExpression(operator, left, right);
    }
    return left;
  }
  function parseLogicalAndExpression() {
    let left = parseLogicalNegationExpression();
    for (; isIdentifier("and"); ) {
      let operator = tokens[current];
      ++current;
      let right = parseLogicalNegationExpression();
      left = new BinaryExpression(operator, left, right);
    }
    return left;
  }
  function parseLogicalNegationExpression() {
    let right;
    for (; isIdentifier("not"); ) {
      let operator = tokens[current];
      ++current;
      let arg = parseLogicalNegationExpression();
      right = new UnaryExpression(operator, arg);
    }
    return right ?? parseComparisonExpression();
  }
  function parseComparisonExpression() {
    let left = parseAdditiveExpression();
    for (; ; ) {
      let operator;
      if (isIdentifier("not", "in"))
        operator = new Token("not in", TOKEN_TYPES.Identifier), current += 2;
      else if (isIdentifier("in"))
        operator = tokens[current++];
      else if (is(TOKEN_TYPES.ComparisonBinaryOperator))
        operator = tokens[current++];
      else
        break;
      let right = parseAdditiveExpression();
      left = new BinaryExpression(operator, left, right);
    }
    return left;
  }
  function parseAdditiveExpression() {
    let left = parseMultiplicativeExpression();
    for (; is(TOKEN_TYPES.AdditiveBinaryOperator); ) {
      let operator = tokens[current];
      ++current;
      let right = parseMultiplicativeExpression();
      left = new BinaryExpression(operator, left, right);
    }
    return left;
  }
  function parseCallMemberExpression() {
    let member = parseMemberExpression(parsePrimaryExpression());
    return is(TOKEN_TYPES.OpenParen) ? parseCallExpression(member) : member;
  }
  function parseCallExpression(callee) {
    let expression = new CallExpression(callee, parseArgs("call"));
    return expression = parseMemberExpression(expression), is(TOKEN_TYPES.OpenParen) && (expression = parseCallExpression(expression)), expression;
  }
  function parseArgs(mode) {
    expect(TOKEN_TYPES.OpenParen, "Expected opening parenthesis for arguments list");
    let args = parseArgumentsList(mode);
    return expect(TOKEN_TYPES.CloseParen, "Expected closing parenthesis for arguments list"), args;
  }
  function parseArgumentsList(mode) {
    let args = [], parameterNames = new Set(), sawKeywordOrDefault = !1, sawSpreadArgument = !1;
    for (; !is(TOKEN_TYPES.CloseParen); ) {
      let isKeywordSpread = is(TOKEN_TYPES.ExponentiationBinaryOperator), isPositionalSpread = is(TOKEN_TYPES.MultiplicativeBinaryOperator) && tokens[current].value === "*";
      if (mode === "parameters" && (isKeywordSpread || isPositionalSpread))
        throw new SyntaxError("Argument unpacking is not allowed in parameter declarations");
      if (isKeywordSpread) {
        if (++current, args.push(new KeywordSpreadExpression(parseExpression())), is(TOKEN_TYPES.Comma) && ++current, !is(TOKEN_TYPES.CloseParen))
          throw new SyntaxError("Expected closing parenthesis: `**` must be applied to the final argument");
        break;
      }
      let argument;
      if (isPositionalSpread) {
        if (sawSpreadArgument)
          throw new SyntaxError("Only one `*` argument unpacking is allowed");
        sawSpreadArgument = !0, ++current;
        let expr = parseExpression();
        argument = new SpreadExpression(expr);
      } else {
        if (argument = parseExpression(), is(TOKEN_TYPES.Equals)) {
          if (++current, !(argument instanceof Identifier))
            throw new SyntaxError(
              mode === "parameters" ? "Expected identifier for parameter declaration" : "Expected identifier for keyword argument"
            );
          let value = parseExpression();
          argument = new KeywordArgumentExpression(argument, value);
        }
        if (mode === "parameters") {
          if (!(argument instanceof Identifier || argument instanceof KeywordArgumentExpression))
            throw new SyntaxError("Expected identifier for parameter declaration");
          let parameterName = argument instanceof Identifier ? argument.value : argument.key.value;
          if (parameterNames.has(parameterName))
            throw new SyntaxError(`Duplicate parameter name: ${parameterName}`);
          parameterNames.add(parameterName);
        }
        if (argument instanceof KeywordArgumentExpression)
          sawKeywordOrDefault = !0;
        else {
          if (sawKeywordOrDefault)
            throw new SyntaxError(
              mode === "call" ? "Positional arguments must come before keyword arguments" : "Non-default argument follows default argument"
            );
          if (sawSpreadArgument)
            throw new SyntaxError("Positional arguments must not follow `*` argument unpacking");
        }
      }
      args.push(argument), is(TOKEN_TYPES.Comma) && ++current;
    }
    return args;
  }
  function parseMemberExpressionArgumentsList() {
    let slices = [], isSlice = !1;
    for (; !is(TOKEN_TYPES.CloseSquareBracket); )
      is(TOKEN_TYPES.Colon) ? (slices.push(void 0), ++current, isSlice = !0) : (slices.push(parseExpression()), is(TOKEN_TYPES.Colon) && (++current, isSlice = !0));
    if (slices.length === 0)
      throw new SyntaxError("Expected at least one argument for member/slice expression");
    if (isSlice) {
      if (slices.length > 3)
        throw new SyntaxError("Expected 0-3 arguments for slice expression");
      return new SliceExpression(...slices);
    }
    return slices[0];
  }
  function parseMemberExpression(object) {
    for (; is(TOKEN_TYPES.Dot) || is(TOKEN_TYPES.OpenSquareBracket); ) {
      let operator = tokens[current];
      ++current;
      let property, computed = operator.type === TOKEN_TYPES.OpenSquareBracket;
      if (computed)
        property = parseMemberExpressionArgumentsList(), expect(TOKEN_TYPES.CloseSquareBracket, "Expected closing square bracket");
      else if (property = parsePrimaryExpression(), property.type !== "Identifier" && property.type !== "IntegerLiteral")
        throw new SyntaxError("Expected identifier or integer following dot operator");
      object = new MemberExpression(object, property, computed);
    }
    return object;
  }
  function parseMultiplicativeExpression() {
    let left = parsePowerExpression();
    for (; is(TOKEN_TYPES.MultiplicativeBinaryOperator); ) {
      let operator = tokens[current++], right = parsePowerExpression();
      left = new BinaryExpression(operator, left, right);
    }
    return left;
  }
  function parsePowerExpression() {
    let left = parseTestExpression();
    for (; is(TOKEN_TYPES.ExponentiationBinaryOperator); ) {
      let operator = tokens[current++], right = parseTestExpression();
      left = new BinaryExpression(operator, left, right);
    }
    return left;
  }
  function parseTestExpression() {
    let operand = parseFilterExpression();
    for (; isIdentifier("is"); ) {
      ++current;
      let negate = isIdentifier("not");
      negate && ++current;
      let filter = parsePrimaryExpression();
      if (!(filter instanceof Identifier))
        throw new SyntaxError("Expected identifier for the test");
      operand = new TestExpression(operand, negate, filter);
    }
    return operand;
  }
  function parseFilterExpression() {
    let operand = parseUnarySignExpression();
    for (; is(TOKEN_TYPES.Pipe); ) {
      ++current;
      let filter = parsePrimaryExpression();
      if (!(filter instanceof Identifier))
        throw new SyntaxError("Expected identifier for the filter");
      is(TOKEN_TYPES.OpenParen) && (filter = parseCallExpression(filter)), operand = new FilterExpression(operand, filter);
    }
    return operand;
  }
  function parseUnarySignExpression() {
    let token = tokens[current];
    if (token && (token.type === TOKEN_TYPES.UnaryOperator || token.type === TOKEN_TYPES.AdditiveBinaryOperator) && (token.value === "-" || token.value === "+")) {
      let operator = tokens[current++], argument = parseUnarySignExpression();
      return new UnaryExpression(operator, argument);
    }
    return parseCallMemberExpression();
  }
  function parsePrimaryExpression() {
    let token = tokens[current++];
    switch (token.type) {
      case TOKEN_TYPES.NumericLiteral: {
        let num = token.value;
        return num.includes(".") ? new FloatLiteral(Number(num)) : new IntegerLiteral(Number(num));
      }
      case TOKEN_TYPES.StringLiteral: {
        let value = token.value;
        for (; is(TOKEN_TYPES.StringLiteral); )
          value += tokens[current++].value;
        return new StringLiteral(value);
      }
      case TOKEN_TYPES.Identifier:
        return new Identifier(token.value);
      case TOKEN_TYPES.OpenParen: {
        let expression = parseExpressionSequence();
        return expect(TOKEN_TYPES.CloseParen, "Expected closing parenthesis, got ${tokens[current].type} instead."), expression;
      }
      case TOKEN_TYPES.OpenSquareBracket: {
        let values = [];
        for (; !is(TOKEN_TYPES.CloseSquareBracket); )
          values.push(parseExpression()), is(TOKEN_TYPES.Comma) && ++current;
        return ++current, new ArrayLiteral(values);
      }
      case TOKEN_TYPES.OpenCurlyBracket: {
        let values = new Map();
        for (; !is(TOKEN_TYPES.CloseCurlyBracket); ) {
          let key = parseExpression();
          expect(TOKEN_TYPES.Colon, "Expected colon between key and value in object literal");
          let value = parseExpression();
          values.set(key, value), is(TOKEN_TYPES.Comma) && ++current;
        }
        return ++current, new ObjectLiteral(values);
      }
      default:
        throw new SyntaxError(`Unexpected token: ${token.type}`);
    }
  }
  for (; current < tokens.length; )
    program.body.push(parseAny());
  return program;
}
function range(start, stop, step = 1) {
  if (stop === void 0 && (stop = start, start = 0), step === 0)
    throw new Error("range() step must not be zero");
  let result = [];
  if (step > 0)
    for (let i = start; i < stop; i += step)
      result.push(i);
  else
    for (let i = start; i > stop; i += step)
      result.push(i);
  return result;
}
function slice(array, start, stop, step = 1) {
  let direction = Math.sign(step);
  direction >= 0 ? (start = (start ??= 0) < 0 ? Math.max(array.length + start, 0) : Math.min(start, array.length), stop = (stop ??= array.length) < 0 ? Math.max(array.length + stop, 0) : Math.min(stop, array.length)) : (start = (start ??= array.length - 1) < 0 ? Math.max(array.length + start, -1) : Math.min(start, array.length - 1), stop = (stop ??= -1) < -1 ? Math.max(array.length + stop, -1) : Math.min(stop, array.length - 1));
  let result = [];
  for (let i = start; direction * i < direction * stop; i += step)
    result.push(array[i]);
  return result;
}
function titleCase(value) {
  return value.replace(/\b\w/g, (c) => c.toUpperCase());
}
function strftime_now(format2) {
  return strftime(new Date(), format2);
}
function strftime(date, format2) {
  let monthFormatterLong = new Intl.DateTimeFormat(void 0, { month: "long" }), monthFormatterShort = new Intl.DateTimeFormat(void 0, { month: "short" }), pad2 = (n) => n < 10 ? "0" + n : n.toString();
  return format2.replace(/%[YmdbBHM%]/g, (token) => {
    switch (token) {
      case "%Y":
        return date.getFullYear().toString();
      case "%m":
        return pad2(date.getMonth() + 1);
      case "%d":
        return pad2(date.getDate());
      case "%b":
        return monthFormatterShort.format(date);
      case "%B":
        return monthFormatterLong.format(date);
      case "%H":
        return pad2(date.getHours());
      case "%M":
        return pad2(date.getMinutes());
      case "%%":
        return "%";
      default:
        return token;
    }
  });
}
function escapeRegExp(s) {
  return s.replace(/[.*+?^${}()|[\]\\]/g, "\\$&");
}
function replace(str, oldvalue, newvalue, count) {
  if (count === 0)
    return str;
  let remaining = count == null || count < 0 ? 1 / 0 : count, pattern = oldvalue.length === 0 ? new RegExp("(?=)", "gu") : new RegExp(escapeRegExp(oldvalue), "gu");
  return str.replaceAll(pattern, (match) => remaining > 0 ? (--remaining, newvalue) : match);
}
var BreakControl = class extends Error {
}, ContinueControl = class extends Error {
}, EMPTY_BUILTINS = new Map(), RuntimeValue = class {
  type = "RuntimeValue";
  value;
  /**
   * A collection of built-in functions for this type.
   */
  get builtins() {
    return EMPTY_BUILTINS;
  }
  /**
   * Creates a new RuntimeValue.
   */
  constructor(value = void 0) {
    this.value = value;
  }
  /**
   * Determines truthiness or falsiness of the runtime value.
   * This function should be overridden by subclasses if it has custom truthiness criteria.
   * @returns {BooleanValue} BooleanValue(true) if the value is truthy, BooleanValue(false) otherwise.
   */
  __bool__() {
    return new BooleanValue(!!this.value);
  }
  toString() {
    return String(this.value);
  }
}, IntegerValue = class extends RuntimeValue {
  type = "IntegerValue";
}, FloatValue = class extends RuntimeValue {
  type = "FloatValue";
  toString() {
    return Object.is(this.value, -0) ? "-0.0" : this.value % 1 === 0 ? this.value.toFixed(1) : this.value.toString();
  }
}, StringValue = class extends RuntimeValue {
  type = "StringValue";
  _builtins;
  get builtins() {
    return this._builtins ??= new Map([
      [
        "upper",
        new FunctionValue(() => new StringValue(this.value.toUpperCase()))
      ],
      [
        "lower",
        new FunctionValue(() => new StringValue(this.value.toLowerCase()))
      ],
      [
        "strip",
        new FunctionValue(() => new StringValue(this.value.trim()))
      ],
      [
        "title",
        new FunctionValue(() => new StringValue(titleCase(this.value)))
      ],
      [
        "capitalize",
        new FunctionValue(() => new StringValue(this.value.charAt(0).toUpperCase() + this.value.slice(1)))
      ],
      ["length", new IntegerValue(this.value.length)],
      [
        "rstrip",
        new FunctionValue(() => new StringValue(this.value.trimEnd()))
      ],
      [
        "lstrip",
        new FunctionValue(() => new StringValue(this.value.trimStart()))
      ],
      [
        "startswith",
        new FunctionValue((args) => {
          if (args.length === 0)
            throw new Error("startswith() requires at least one argument");
          let pattern = args[0];
          if (pattern instanceof StringValue)
            return new BooleanValue(this.value.startsWith(pattern.value));
          if (pattern instanceof ArrayValue) {
            for (let item of pattern.value) {
              if (!(item instanceof StringValue))
                throw new Error("startswith() tuple elements must be strings");
              if (this.value.startsWith(item.value))
                return new BooleanValue(!0);
            }
            return new BooleanValue(!1);
          }
          throw new Error("startswith() argument must be a string or tuple of strings");
        })
      ],
      [
        "endswith",
        new FunctionValue((args) => {
          if (args.length === 0)
            throw new Error("endswith() requires at least one argument");
          let pattern = args[0];
          if (pattern instanceof StringValue)
            return new BooleanValue(this.value.endsWith(pattern.value));
          if (pattern instanceof ArrayValue) {
            for (let item of pattern.value) {
              if (!(item instanceof StringValue))
                throw new Error("endswith() tuple elements must be strings");
              if (this.value.endsWith(item.value))
                return new BooleanValue(!0);
            }
            return new BooleanValue(!1);
          }
          throw new Error("endswith() argument must be a string or tuple of strings");
        })
      ],
      [
        "split",
        // follows Python's `str.split(sep=None, maxsplit=-1)` function behavior
        // https://docs.python.org/3.13/library/stdtypes.html#str.split
        new FunctionValue((args) => {
          let sep = args[0] ?? new NullValue();
          if (!(sep instanceof StringValue || sep instanceof NullValue))
            throw new Error("sep argument must be a string or null");
          let maxsplit = args[1] ?? new IntegerValue(-1);
          if (!(maxsplit instanceof IntegerValue))
            throw new Error("maxsplit argument must be a number");
          let result = [];
          if (sep instanceof NullValue) {
            let text = this.value.trimStart();
            for (let { 0: match, index } of text.matchAll(/\S+/g)) {
              if (maxsplit.value !== -1 && result.length >= maxsplit.value && index !== void 0) {
                result.push(match + text.slice(index + match.length));
                break;
              }
              result.push(match);
            }
          } else {
            if (sep.value === "")
              throw new Error("empty separator");
            result = this.value.split(sep.value), maxsplit.value !== -1 && result.length > maxsplit.value && result.push(result.splice(maxsplit.value).join(sep.value));
          }
          return new ArrayValue(result.map((part) => new StringValue(part)));
        })
      ],
      [
        "replace",
        new FunctionValue((args) => {
          if (args.length < 2)
            throw new Error("replace() requires at least two arguments");
          let oldValue = args[0], newValue = args[1];
          if (!(oldValue instanceof StringValue && newValue instanceof StringValue))
            throw new Error("replace() arguments must be strings");
          let count;
          if (args.length > 2 ? args[2].type === "KeywordArgumentsValue" ? count = args[2].value.get("count") ?? new NullValue() : count = args[2] : count = new NullValue(), !(count instanceof IntegerValue || count instanceof NullValue))
            throw new Error("replace() count argument must be a number or null");
          return new StringValue(replace(this.value, oldValue.value, newValue.value, count.value));
        })
      ]
    ]);
  }
}, BooleanValue = class extends RuntimeValue {
  type = "BooleanValue";
}, NON_ASCII_CHARS = /[\x7f-\uffff]/g;
function makeAsciiSafe(str) {
  return str.replace(NON_ASCII_CHARS, (char) => "\\u" + char.charCodeAt(0).toString(16).padStart(4, "0"));
}
function toJSON(input, options = {}, depth = 0, convertUndefinedToNull = !0) {
  let { indent = null, ensureAscii = !1, separators = null, sortKeys = !1 } = options, itemSeparator, keySeparator;
  switch (separators ? [itemSeparator, keySeparator] = separators : indent ? (itemSeparator = ",", keySeparator = ": ") : (itemSeparator = ", ", keySeparator = ": "), input.type) {
    case "NullValue":
      return "null";
    case "UndefinedValue":
      return convertUndefinedToNull ? "null" : "undefined";
    case "IntegerValue":
    case "FloatValue":
    case "BooleanValue":
      return JSON.stringify(input.value);
    case "StringValue": {
      let result = JSON.stringify(input.value);
      return ensureAscii && (result = makeAsciiSafe(result)), result;
    }
    case "ArrayValue":
    case "NamespaceValue":
    case "ObjectValue": {
      let indentValue = indent ? " ".repeat(indent) : "", basePadding = `
` + indentValue.repeat(depth), childrenPadding = basePadding + indentValue;
      if (input.type === "ArrayValue") {
        let core = input.value.map((x) => toJSON(x, options, depth + 1, convertUndefinedToNull));
        return indent ? `[${childrenPadding}${core.join(`${itemSeparator}${childrenPadding}`)}${basePadding}]` : `[${core.join(itemSeparator)}]`;
      } else {
        let entries = Array.from(input.value.entries());
        sortKeys && (entries = entries.sort(([a], [b]) => a.localeCompare(b)));
        let core = entries.map(([key, value]) => {
          let keyStr = JSON.stringify(key);
          ensureAscii && (keyStr = makeAsciiSafe(keyStr));
          let v = `${keyStr}${keySeparator}${toJSON(value, options, depth + 1, convertUndefinedToNull)}`;
          return indent ? `${childrenPadding}${v}` : v;
        });
        return indent ? `{${core.join(itemSeparator)}${basePadding}}` : `{${core.join(itemSeparator)}}`;
      }
    }
    default:
      throw new Error(`Cannot convert to JSON: ${input.type}`);
  }
}
var ObjectValue = class extends RuntimeValue {
  type = "ObjectValue";
  _builtins;
  /**
   * NOTE: necessary to override since all JavaScript arrays are considered truthy,
   * while only non-empty Python arrays are consider truthy.
   *
   * e.g.,
   *  - JavaScript:  {} && 5 -> 5
   *  - Python:      {} and 5 -> {}
   */
  __bool__() {
    return new BooleanValue(this.value.size > 0);
  }
  get builtins() {
    return this._builtins ??= new Map([
      [
        "get",
        new FunctionValue(([key, defaultValue]) => {
          if (!(key instanceof StringValue))
            throw new Error(`Object key must be a string: got ${key.type}`);
          return this.value.get(key.value) ?? defaultValue ?? new NullValue();
        })
      ],
      ["items", new FunctionValue(() => this.items())],
      ["keys", new FunctionValue(() => this.keys())],
      ["values", new FunctionValue(() => this.values())],
      [
        "dictsort",
        new FunctionValue((args) => {
          let kwargs = new Map(), positionalArgs = args.filter((arg) => arg instanceof KeywordArgumentsValue ? (kwargs = arg.value, !1) : !0), caseSensitive = positionalArgs.at(0) ?? kwargs.get("case_sensitive") ?? new BooleanValue(!1);
          if (!(caseSensitive instanceof BooleanValue))
            throw new Error("case_sensitive must be a boolean");
          let by = positionalArgs.at(1) ?? kwargs.get("by") ?? new StringValue("key");
          if (!(by instanceof StringValue))
            throw new Error("by must be a string");
          if (!["key", "value"].includes(by.value))
            throw new Error("by must be either 'key' or 'value'");
          let reverse = positionalArgs.at(2) ?? kwargs.get("reverse") ?? new BooleanValue(!1);
          if (!(reverse instanceof BooleanValue))
            throw new Error("reverse must be a boolean");
          let items = Array.from(this.value.entries()).map(([key, value]) => new ArrayValue([new StringValue(key), value])).sort((a, b) => {
            let index = by.value === "key" ? 0 : 1, aVal = a.value[index], bVal = b.value[index], result = compareRuntimeValues(aVal, bVal, caseSensitive.value);
            return reverse.value ? -result : result;
          });
          return new ArrayValue(items);
        })
      ]
    ]);
  }
  items() {
    return new ArrayValue(
      Array.from(this.value.entries()).map(([key, value]) => new ArrayValue([new StringValue(key), value]))
    );
  }
  keys() {
    return new ArrayValue(Array.from(this.value.keys()).map((key) => new StringValue(key)));
  }
  values() {
    return new ArrayValue(Array.from(this.value.values()));
  }
  toString() {
    return toJSON(this, {}, 0, !1);
  }
}, KeywordArgumentsValue = class extends ObjectValue {
  type = "KeywordArgumentsValue";
}, NamespaceValue = class extends RuntimeValue {
  type = "NamespaceValue";
  toString() {
    return toJSON(this, {}, 0, !1);
  }
}, ArrayValue = class extends RuntimeValue {
  type = "ArrayValue";
  _builtins;
  get builtins() {
    return this._builtins ??= new Map([["length", new IntegerValue(this.value.length)]]);
  }
  /**
   * NOTE: necessary to override since all JavaScript arrays are considered truthy,
   * while only non-empty Python arrays are consider truthy.
   *
   * e.g.,
   *  - JavaScript:  [] && 5 -> 5
   *  - Python:      [] and 5 -> []
   */
  __bool__() {
    return new BooleanValue(this.value.length > 0);
  }
  toString() {
    return toJSON(this, {}, 0, !1);
  }
}, TupleValue = class extends ArrayValue {
  type = "TupleValue";
}, FunctionValue = class extends RuntimeValue {
  type = "FunctionValue";
}, NullValue = class extends RuntimeValue {
  type = "NullValue";
}, UndefinedValue = class extends RuntimeValue {
  type = "UndefinedValue";
};
function normalizeNamespaceEntry(pair) {
  let values;
  if (pair instanceof ArrayValue ? values = pair.value : pair instanceof StringValue && (values = Array.from(pair.value, (char) => new StringValue(char))), !values || values.length !== 2)
    throw new Error("namespace expected an object or an iterable of [key, value] pairs");
  let [key, value] = values;
  if (!(key instanceof StringValue))
    throw new Error("namespace keys must be strings");
  return [key, value];
}
var _Environment = class {
  constructor(parent) {
    this.parent = parent;
  }
  /**
   * The variables declared in this environment.
   */
  variables = new Map([
    [
      "namespace",
      new FunctionValue((args) => {
        let positional = args.slice(), kwargs;
        if (positional.at(-1) instanceof KeywordArgumentsValue && (kwargs = positional.pop()), positional.length > 1)
          throw new Error(`namespace expected at most 1 argument, got ${positional.length}`);
        let entries = new Map();
        if (positional.length === 1) {
          let source = positional[0];
          if (source instanceof ObjectValue)
            for (let [key, value] of source.value)
              entries.set(key, value);
          else if (source instanceof ArrayValue)
            for (let pair of source.value) {
              let [key, value] = normalizeNamespaceEntry(pair);
              entries.set(key.value, value);
            }
          else
            throw new Error(`'${source.type}' object is not iterable`);
        }
        if (kwargs)
          for (let [key, value] of kwargs.value)
            entries.set(key, value);
        return new NamespaceValue(entries);
      })
    ]
  ]);
  tests = _Environment.TESTS;
  /**
   * Set the value of a variable in the current environment.
   */
  set(name, value) {
    return this.declareVariable(name, convertToRuntimeValues(value));
  }
  declareVariable(name, value) {
    if (this.variables.has(name))
      throw new SyntaxError(`Variable already declared: ${name}`);
    return this.variables.set(name, value), value;
  }
  // private assignVariable(name: string, value: AnyRuntimeValue): AnyRuntimeValue {
  // 	const env = this.resolve(name);
  // 	env.variables.set(name, value);
  // 	return value;
  // }
  /**
   * Set variable in the current scope.
   * See https://jinja.palletsprojects.com/en/3.0.x/templates/#assignments for more information.
   */
  setVariable(name, value) {
    return this.variables.set(name, value), value;
  }
  /**
   * Resolve the environment in which the variable is declared.
   * @param {string} name The name of the variable.
   * @returns {Environment} The environment in which the variable is declared.
   */
  resolve(name) {
    if (this.variables.has(name))
      return this;
    if (this.parent)
      return this.parent.resolve(name);
    throw new Error(`Unknown variable: ${name}`);
  }
  lookupVariable(name) {
    try {
      return this.resolve(name).variables.get(name) ?? new UndefinedValue();
    } catch {
      return new UndefinedValue();
    }
  }
}, Environment = _Environment;
__publicField(Environment, "TESTS", new Map([
  ["boolean", (operand) => operand.type === "BooleanValue"],
  ["callable", (operand) => operand instanceof FunctionValue],
  [
    "odd",
    (operand) => {
      if (!(operand instanceof IntegerValue))
        throw new Error(`cannot odd on ${operand.type}`);
      return operand.value % 2 !== 0;
    }
  ],
  [
    "even",
    (operand) => {
      if (!(operand instanceof IntegerValue))
        throw new Error(`cannot even on ${operand.type}`);
      return operand.value % 2 === 0;
    }
  ],
  ["false", (operand) => operand.type === "BooleanValue" && !operand.value],
  ["true", (operand) => operand.type === "BooleanValue" && operand.value],
  ["none", (operand) => operand.type === "NullValue"],
  ["string", (operand) => operand.type === "StringValue"],
  ["number", (operand) => operand instanceof IntegerValue || operand instanceof FloatValue],
  ["integer", (operand) => operand instanceof IntegerValue],
  ["iterable", (operand) => operand.type === "ArrayValue" || operand.type === "StringValue"],
  ["mapping", (operand) => operand instanceof ObjectValue],
  [
    "sequence",
    (operand) => operand instanceof ArrayValue || operand instanceof ObjectValue || operand instanceof StringValue
  ],
  [
    "lower",
    (operand) => {
      let str = operand.value;
      return operand.type === "StringValue" && str === str.toLowerCase();
    }
  ],
  [
    "upper",
    (operand) => {
      let str = operand.value;
      return operand.type === "StringValue" && str === str.toUpperCase();
    }
  ],
  ["none", (operand) => operand.type === "NullValue"],
  ["defined", (operand) => operand.type !== "UndefinedValue"],
  ["undefined", (operand) => operand.type === "UndefinedValue"],
  ["equalto", (a, b) => a.value === b.value],
  ["eq", (a, b) => a.value === b.value]
]));
function setupGlobals(env) {
  env.set("false", !1), env.set("true", !0), env.set("none", null), env.set("raise_exception", (args) => {
    throw new Error(args);
  }), env.set("range", range), env.set("strftime_now", strftime_now), env.set("True", !0), env.set("False", !1), env.set("None", null);
}
function isAttributeContainer(value) {
  return value instanceof ObjectValue || value instanceof NamespaceValue;
}
function isNumericLikeValue(value) {
  return value instanceof IntegerValue || value instanceof FloatValue || value instanceof BooleanValue;
}
function getNumericValue(value) {
  return value instanceof BooleanValue ? Number(value.value) : value.value;
}
function getAttributeValue(item, attributePath) {
  let parts = attributePath.split("."), value = item;
  for (let part of parts)
    if (isAttributeContainer(value))
      value = value.value.get(part) ?? new UndefinedValue();
    else if (value instanceof ArrayValue) {
      let index = parseInt(part, 10);
      if (!isNaN(index) && index >= 0 && index < value.value.length)
        value = value.value[index];
      else
        return new UndefinedValue();
    } else
      return new UndefinedValue();
  return value;
}
function compareRuntimeValues(a, b, caseSensitive = !1) {
  if (a instanceof NullValue && b instanceof NullValue)
    return 0;
  if (a instanceof NullValue || b instanceof NullValue)
    throw new Error(`Cannot compare ${a.type} with ${b.type}`);
  if (a instanceof UndefinedValue && b instanceof UndefinedValue)
    return 0;
  if (a instanceof UndefinedValue || b instanceof UndefinedValue)
    throw new Error(`Cannot compare ${a.type} with ${b.type}`);
  if (isNumericLikeValue(a) && isNumericLikeValue(b)) {
    let aNum = getNumericValue(a), bNum = getNumericValue(b);
    return aNum < bNum ? -1 : aNum > bNum ? 1 : 0;
  }
  if (a.type !== b.type)
    throw new Error(`Cannot compare different types: ${a.type} and ${b.type}`);
  if (a.type === "StringValue") {
    let aStr = a.value, bStr = b.value;
    return caseSensitive || (aStr = aStr.toLowerCase(), bStr = bStr.toLowerCase()), aStr < bStr ? -1 : aStr > bStr ? 1 : 0;
  } else
    throw new Error(`Cannot compare type: ${a.type}`);
}
function getParameterDescriptor(argument) {
  if (argument.type === "Identifier")
    return { name: argument.value };
  let keywordArgument = argument;
  return { name: keywordArgument.key.value, defaultValue: keywordArgument.value };
}
function isSpecialMacroArgument(name) {
  return name === "kwargs" || name === "varargs";
}
function findAccessedSpecialMacroArguments(parameters, body) {
  let declared = new Set(), accessed = new Set(), declareName = (name) => {
    isSpecialMacroArgument(name) && declared.add(name);
  }, declareTarget = (target) => {
    if (target.type === "Identifier")
      declareName(target.value);
    else if (target.type === "TupleLiteral")
      for (let item of target.value)
        declareTarget(item);
  }, declareArgument = (argument) => {
    declareName(getParameterDescriptor(argument).name);
  }, visitArgumentDefaults = (args) => {
    for (let argument of args) {
      let parameter = getParameterDescriptor(argument);
      parameter.defaultValue && visit(parameter.defaultValue);
    }
  }, visitFilter = (filter) => {
    filter.type === "CallExpression" && visit(filter.args);
  }, visit = (node) => {
    if (Array.isArray(node)) {
      for (let item of node)
        visit(item);
      return;
    }
    if (node instanceof Map) {
      for (let [key, value] of node)
        visit(key), visit(value);
      return;
    }
    if (node instanceof Statement)
      switch (node.type) {
        case "For": {
          let statement = node;
          if (declareTarget(statement.loopvar), statement.iterable.type === "SelectExpression") {
            let iterable = statement.iterable;
            visit(iterable.lhs), visit(statement.body), visit(statement.defaultBlock), visit(iterable.test);
            return;
          }
          visit(statement.iterable), visit(statement.body), visit(statement.defaultBlock);
          return;
        }
        case "Set": {
          let statement = node;
          declareTarget(statement.assignee), visit(statement.value), visit(statement.body);
          return;
        }
        case "Macro": {
          let statement = node;
          for (let argument of statement.args)
            declareArgument(argument);
          visitArgumentDefaults(statement.args), visit(statement.body);
          return;
        }
        case "CallStatement": {
          let statement = node;
          visit(statement.call);
          for (let argument of statement.callerArgs ?? [])
            declareArgument(argument);
          visitArgumentDefaults(statement.callerArgs ?? []), visit(statement.body);
          return;
        }
        case "FilterStatement": {
          let statement = node;
          visit(statement.body), visitFilter(statement.filter);
          return;
        }
        case "Identifier": {
          let name = node.value;
          isSpecialMacroArgument(name) && !declared.has(name) && accessed.add(name);
          return;
        }
        case "MemberExpression": {
          let expression = node;
          visit(expression.object), expression.computed && visit(expression.property);
          return;
        }
        case "FilterExpression": {
          let expression = node;
          visit(expression.operand), visitFilter(expression.filter);
          return;
        }
        case "TestExpression":
          visit(node.operand);
          return;
        case "SelectExpression": {
          let expression = node;
          visit(expression.test), visit(expression.lhs);
          return;
        }
        case "KeywordArgumentExpression":
          visit(node.value);
          return;
        default:
          for (let child of Object.values(node))
            visit(child);
      }
  };
  for (let parameter of parameters)
    declareArgument(parameter);
  return visit(body), accessed;
}
var Interpreter = class {
  global;
  constructor(env) {
    this.global = env ?? new Environment();
  }
  /**
   * Run the program.
   */
  run(program) {
    return this.evaluate(program, this.global);
  }
  /**
   * Evaluates expressions following the binary operation type.
   */
  evaluateBinaryExpression(node, environment) {
    let left = this.evaluate(node.left, environment);
    switch (node.operator.value) {
      case "and":
        return left.__bool__().value ? this.evaluate(node.right, environment) : left;
      case "or":
        return left.__bool__().value ? left : this.evaluate(node.right, environment);
    }
    let right = this.evaluate(node.right, environment);
    switch (node.operator.value) {
      case "==":
        return new BooleanValue(left.value == right.value);
      case "!=":
        return new BooleanValue(left.value != right.value);
    }
    if (left instanceof UndefinedValue || right instanceof UndefinedValue) {
      if (right instanceof UndefinedValue && ["in", "not in"].includes(node.operator.value))
        return new BooleanValue(node.operator.value === "not in");
      throw new Error(`Cannot perform operation ${node.operator.value} on undefined values`);
    } else {
      if (left instanceof NullValue || right instanceof NullValue)
        throw new Error("Cannot perform operation on null values");
      if (node.operator.value === "~")
        return new StringValue(left.value.toString() + right.value.toString());
      if (node.operator.value === "**" && isNumericLikeValue(left) && isNumericLikeValue(right)) {
        let a = getNumericValue(left), b = getNumericValue(right);
        if (a === 0 && b < 0)
          throw new Error("0.0 cannot be raised to a negative power");
        let result = a ** b;
        if (!Number.isFinite(result))
          throw new Error("Exponentiation result is not a finite real number");
        return left instanceof FloatValue || right instanceof FloatValue || b < 0 ? new FloatValue(result) : new IntegerValue(result);
      } else if ((left instanceof IntegerValue || left instanceof FloatValue) && (right instanceof IntegerValue || right instanceof FloatValue)) {
        let a = left.value, b = right.value;
        switch (node.operator.value) {
          case "+":
          case "-":
          case "*": {
            let res = node.operator.value === "+" ? a + b : node.operator.value === "-" ? a - b : a * b;
            return left instanceof FloatValue || right instanceof FloatValue ? new FloatValue(res) : new IntegerValue(res);
          }
          case "/":
            return new FloatValue(a / b);
          case "//": {
            let res = Math.floor(a / b);
            return left instanceof FloatValue || right instanceof FloatValue ? new FloatValue(res) : new IntegerValue(res);
          }
          case "%": {
            let rem = a % b;
            return left instanceof FloatValue || right instanceof FloatValue ? new FloatValue(rem) : new IntegerValue(rem);
          }
          case "<":
            return new BooleanValue(a < b);
          case ">":
            return new BooleanValue(a > b);
          case ">=":
            return new BooleanValue(a >= b);
          case "<=":
            return new BooleanValue(a <= b);
        }
      } else if (left instanceof ArrayValue && right instanceof ArrayValue) {
        if (node.operator.value === "+")
          return new ArrayValue(left.value.concat(right.value));
      } else if (right instanceof ArrayValue) {
        let member = right.value.find((x) => x.value === left.value) !== void 0;
        switch (node.operator.value) {
          case "in":
            return new BooleanValue(member);
          case "not in":
            return new BooleanValue(!member);
        }
      }
    }
    if ((left instanceof StringValue || right instanceof StringValue) && node.operator.value === "+")
      return new StringValue(left.value.toString() + right.value.toString());
    if (left instanceof StringValue && right instanceof StringValue)
      switch (node.operator.value) {
        case "in":
          return new BooleanValue(right.value.includes(left.value));
        case "not in":
          return new BooleanValue(!right.value.includes(left.value));
      }
    if (left instanceof StringValue && right instanceof ObjectValue)
      switch (node.operator.value) {
        case "in":
          return new BooleanValue(right.value.has(left.value));
        case "not in":
          return new BooleanValue(!right.value.has(left.value));
      }
    throw new SyntaxError(`Unknown operator "${node.operator.value}" between ${left.type} and ${right.type}`);
  }
  evaluateArguments(args, environment) {
    let positionalArguments = [], keywordArguments = new Map(), addKeywordArgument = (key, value) => {
      if (keywordArguments.has(key))
        throw new Error(`Got multiple values for keyword argument '${key}'`);
      keywordArguments.set(key, value);
    };
    for (let argument of args)
      if (argument.type === "SpreadExpression") {
        let spreadNode = argument, val = this.evaluate(spreadNode.argument, environment);
        if (!(val instanceof ArrayValue))
          throw new Error(`Cannot unpack non-iterable type: ${val.type}`);
        for (let item of val.value)
          positionalArguments.push(item);
      } else argument.type !== "KeywordArgumentExpression" && argument.type !== "KeywordSpreadExpression" && positionalArguments.push(this.evaluate(argument, environment));
    for (let argument of args)
      if (argument.type === "KeywordArgumentExpression") {
        let kwarg = argument;
        addKeywordArgument(kwarg.key.value, this.evaluate(kwarg.value, environment));
      } else if (argument.type === "KeywordSpreadExpression") {
        let spreadNode = argument, val = this.evaluate(spreadNode.argument, environment);
        if (!(val instanceof ObjectValue))
          throw new Error(`Argument after ** must be a mapping, not ${val.type}`);
        for (let [key, value] of val.value)
          addKeywordArgument(key, value);
      }
    return [positionalArguments, keywordArguments];
  }
  applyFilter(operand, filterNode, environment) {
    if (filterNode.type === "Identifier") {
      let filter = filterNode;
      if (filter.value === "safe")
        return operand;
      if (filter.value === "tojson")
        return new StringValue(toJSON(operand, {}));
      if (operand instanceof ArrayValue)
        switch (filter.value) {
          case "list":
            return operand;
          case "first":
            return operand.value[0];
          case "last":
            return operand.value[operand.value.length - 1];
          case "length":
            return new IntegerValue(operand.value.length);
          case "reverse":
            return new ArrayValue(operand.value.slice().reverse());
          case "sort":
            return new ArrayValue(operand.value.slice().sort((a, b) => compareRuntimeValues(a, b, !1)));
          case "join":
            return new StringValue(operand.value.map((x) => x.value).join(""));
          case "string":
            return new StringValue(toJSON(operand, {}, 0, !1));
          case "unique": {
            let seen = new Set(), output = [];
            for (let item of operand.value)
              seen.has(item.value) || (seen.add(item.value), output.push(item));
            return new ArrayValue(output);
          }
          default:
            throw new Error(`Unknown ArrayValue filter: ${filter.value}`);
        }
      else if (operand instanceof StringValue)
        switch (filter.value) {
          case "length":
          case "upper":
          case "lower":
          case "title":
          case "capitalize": {
            let builtin = operand.builtins.get(filter.value);
            if (builtin instanceof FunctionValue)
              return builtin.value(
                /* no arguments */
                [],
                environment
              );
            if (builtin instanceof IntegerValue)
              return builtin;
            throw new Error(`Unknown StringValue filter: ${filter.value}`);
          }
          case "trim":
            return new StringValue(operand.value.trim());
          case "indent":
            return new StringValue(
              operand.value.split(`
`).map(
                (x, i) => (
                  // By default, don't indent the first line or empty lines
                  i === 0 || x.length === 0 ? x : "    " + x
                )
              ).join(`
`)
            );
          case "join":
          case "string":
            return operand;
          case "int": {
            let val = parseInt(operand.value, 10);
            return new IntegerValue(isNaN(val) ? 0 : val);
          }
          case "float": {
            let val = parseFloat(operand.value);
            return new FloatValue(isNaN(val) ? 0 : val);
          }
          default:
            throw new Error(`Unknown StringValue filter: ${filter.value}`);
        }
      else if (operand instanceof IntegerValue || operand instanceof FloatValue)
        switch (filter.value) {
          case "abs":
            return operand instanceof IntegerValue ? new IntegerValue(Math.abs(operand.value)) : new FloatValue(Math.abs(operand.value));
          case "int":
            return new IntegerValue(Math.floor(operand.value));
          case "float":
            return new FloatValue(operand.value);
          case "string":
            return new StringValue(operand.toString());
          default:
            throw new Error(`Unknown NumericValue filter: ${filter.value}`);
        }
      else if (operand instanceof ObjectValue)
        switch (filter.value) {
          case "items":
            return new ArrayValue(
              Array.from(operand.value.entries()).map(([key, value]) => new ArrayValue([new StringValue(key), value]))
            );
          case "length":
            return new IntegerValue(operand.value.size);
          default: {
            let builtin = operand.builtins.get(filter.value);
            if (builtin)
              return builtin instanceof FunctionValue ? builtin.value([], environment) : builtin;
            throw new Error(`Unknown ObjectValue filter: ${filter.value}`);
          }
        }
      else if (operand instanceof BooleanValue)
        switch (filter.value) {
          case "bool":
            return new BooleanValue(operand.value);
          case "int":
            return new IntegerValue(operand.value ? 1 : 0);
          case "float":
            return new FloatValue(operand.value ? 1 : 0);
          case "string":
            return new StringValue(operand.value ? "true" : "false");
          default:
            throw new Error(`Unknown BooleanValue filter: ${filter.value}`);
        }
      throw new Error(`Cannot apply filter "${filter.value}" to type: ${operand.type}`);
    } else if (filterNode.type === "CallExpression") {
      let filter = filterNode;
      if (filter.callee.type !== "Identifier")
        throw new Error(`Unknown filter: ${filter.callee.type}`);
      let filterName = filter.callee.value;
      if (filterName === "tojson") {
        let [, kwargs] = this.evaluateArguments(filter.args, environment), indent = kwargs.get("indent") ?? new NullValue();
        if (!(indent instanceof IntegerValue || indent instanceof NullValue))
          throw new Error("If set, indent must be a number");
        let ensureAscii = kwargs.get("ensure_ascii") ?? new BooleanValue(!1);
        if (!(ensureAscii instanceof BooleanValue))
          throw new Error("If set, ensure_ascii must be a boolean");
        let sortKeys = kwargs.get("sort_keys") ?? new BooleanValue(!1);
        if (!(sortKeys instanceof BooleanValue))
          throw new Error("If set, sort_keys must be a boolean");
        let separatorsArg = kwargs.get("separators") ?? new NullValue(), separators = null;
        if (separatorsArg instanceof ArrayValue || separatorsArg instanceof TupleValue) {
          if (separatorsArg.value.length !== 2)
            throw new Error("separators must be a tuple of two strings");
          let [itemSep, keySep] = separatorsArg.value;
          if (!(itemSep instanceof StringValue) || !(keySep instanceof StringValue))
            throw new Error("separators must be a tuple of two strings");
          separators = [itemSep.value, keySep.value];
        } else if (!(separatorsArg instanceof NullValue))
          throw new Error("If set, separators must be a tuple of two strings");
        return new StringValue(
          toJSON(operand, {
            indent: indent.value,
            ensureAscii: ensureAscii.value,
            sortKeys: sortKeys.value,
            separators
          })
        );
      } else if (filterName === "join") {
        let value;
        if (operand instanceof StringValue)
          value = Array.from(operand.value);
        else if (operand instanceof ArrayValue)
          value = operand.value.map((x) => x.value);
        else
          throw new Error(`Cannot apply filter "${filterName}" to type: ${operand.type}`);
        let [args, kwargs] = this.evaluateArguments(filter.args, environment), separator = args.at(0) ?? kwargs.get("separator") ?? new StringValue("");
        if (!(separator instanceof StringValue))
          throw new Error("separator must be a string");
        return new StringValue(value.join(separator.value));
      } else if (filterName === "int" || filterName === "float") {
        let [args, kwargs] = this.evaluateArguments(filter.args, environment), defaultValue = args.at(0) ?? kwargs.get("default") ?? (filterName === "int" ? new IntegerValue(0) : new FloatValue(0));
        if (operand instanceof StringValue) {
          let val = filterName === "int" ? parseInt(operand.value, 10) : parseFloat(operand.value);
          return isNaN(val) ? defaultValue : filterName === "int" ? new IntegerValue(val) : new FloatValue(val);
        } else {
          if (operand instanceof IntegerValue || operand instanceof FloatValue)
            return operand;
          if (operand instanceof BooleanValue)
            return filterName === "int" ? new IntegerValue(operand.value ? 1 : 0) : new FloatValue(operand.value ? 1 : 0);
          throw new Error(`Cannot apply filter "${filterName}" to type: ${operand.type}`);
        }
      } else if (filterName === "default") {
        let [args, kwargs] = this.evaluateArguments(filter.args, environment), defaultValue = args[0] ?? new StringValue(""), booleanValue = args[1] ?? kwargs.get("boolean") ?? new BooleanValue(!1);
        if (!(booleanValue instanceof BooleanValue))
          throw new Error("`default` filter flag must be a boolean");
        return operand instanceof UndefinedValue || booleanValue.value && !operand.__bool__().value ? defaultValue : operand;
      }
      if (operand instanceof ArrayValue) {
        switch (filterName) {
          case "sort": {
            let [args, kwargs] = this.evaluateArguments(filter.args, environment), reverse = args.at(0) ?? kwargs.get("reverse") ?? new BooleanValue(!1);
            if (!(reverse instanceof BooleanValue))
              throw new Error("reverse must be a boolean");
            let caseSensitive = args.at(1) ?? kwargs.get("case_sensitive") ?? new BooleanValue(!1);
            if (!(caseSensitive instanceof BooleanValue))
              throw new Error("case_sensitive must be a boolean");
            let attribute = args.at(2) ?? kwargs.get("attribute") ?? new NullValue();
            if (!(attribute instanceof StringValue || attribute instanceof IntegerValue || attribute instanceof NullValue))
              throw new Error("attribute must be a string, integer, or null");
            let getSortValue = (item) => {
              if (attribute instanceof NullValue)
                return item;
              let attrPath = attribute instanceof IntegerValue ? String(attribute.value) : attribute.value;
              return getAttributeValue(item, attrPath);
            };
            return new ArrayValue(
              operand.value.slice().sort((a, b) => {
                let aVal = getSortValue(a), bVal = getSortValue(b), result = compareRuntimeValues(aVal, bVal, caseSensitive.value);
                return reverse.value ? -result : result;
              })
            );
          }
          case "selectattr":
          case "rejectattr": {
            let select = filterName === "selectattr";
            if (operand.value.some((item) => !isAttributeContainer(item)))
              throw new Error(`\`${filterName}\` can only be applied to array of objects`);
            if (filter.args.some((x) => x.type !== "StringLiteral"))
              throw new Error(`arguments of \`${filterName}\` must be strings`);
            let [attr, testName, value] = filter.args.map((x) => this.evaluate(x, environment)), testFunction;
            if (testName) {
              let test = environment.tests.get(testName.value);
              if (!test)
                throw new Error(`Unknown test: ${testName.value}`);
              testFunction = test;
            } else
              testFunction = (...x) => x[0].__bool__().value;
            let filtered = operand.value.filter((item) => {
              let a = item.value.get(attr.value), result = a ? testFunction(a, value) : !1;
              return select ? result : !result;
            });
            return new ArrayValue(filtered);
          }
          case "map": {
            let [, kwargs] = this.evaluateArguments(filter.args, environment);
            if (kwargs.has("attribute")) {
              let attr = kwargs.get("attribute");
              if (!(attr instanceof StringValue))
                throw new Error("attribute must be a string");
              let defaultValue = kwargs.get("default"), mapped = operand.value.map((item) => {
                if (!isAttributeContainer(item))
                  throw new Error("items in map must be an object");
                let value = getAttributeValue(item, attr.value);
                return value instanceof UndefinedValue ? defaultValue ?? new UndefinedValue() : value;
              });
              return new ArrayValue(mapped);
            } else
              throw new Error("`map` expressions without `attribute` set are not currently supported.");
          }
        }
        throw new Error(`Unknown ArrayValue filter: ${filterName}`);
      } else if (operand instanceof StringValue) {
        switch (filterName) {
          case "indent": {
            let [args, kwargs] = this.evaluateArguments(filter.args, environment), width = args.at(0) ?? kwargs.get("width") ?? new IntegerValue(4);
            if (!(width instanceof IntegerValue))
              throw new Error("width must be a number");
            let first = args.at(1) ?? kwargs.get("first") ?? new BooleanValue(!1), blank = args.at(2) ?? kwargs.get("blank") ?? new BooleanValue(!1), lines = operand.value.split(`
`), indent = " ".repeat(width.value), indented = lines.map(
              (x, i) => !first.value && i === 0 || !blank.value && x.length === 0 ? x : indent + x
            );
            return new StringValue(indented.join(`
`));
          }
          case "replace": {
            let replaceFn = operand.builtins.get("replace");
            if (!(replaceFn instanceof FunctionValue))
              throw new Error("replace filter not available");
            let [args, kwargs] = this.evaluateArguments(filter.args, environment);
            return replaceFn.value([...args, new KeywordArgumentsValue(kwargs)], environment);
          }
        }
        throw new Error(`Unknown StringValue filter: ${filterName}`);
      } else if (operand instanceof ObjectValue) {
        let builtin = operand.builtins.get(filterName);
        if (builtin && builtin instanceof FunctionValue) {
          let [args, kwargs] = this.evaluateArguments(filter.args, environment);
          return kwargs.size > 0 && args.push(new KeywordArgumentsValue(kwargs)), builtin.value(args, environment);
        }
        throw new Error(`Unknown ObjectValue filter: ${filterName}`);
      } else
        throw new Error(`Cannot apply filter "${filterName}" to type: ${operand.type}`);
    }
    throw new Error(`Unknown filter: ${filterNode.type}`);
  }
  /**
   * Evaluates expressions following the filter operation type.
   */
  evaluateFilterExpression(node, environment) {
    let operand = this.evaluate(node.operand, environment);
    return this.applyFilter(operand, node.filter, environment);
  }
  /**
   * Evaluates expressions following the test operation type.
   */
  evaluateTestExpression(node, environment) {
    let operand = this.evaluate(node.operand, environment), test = environment.tests.get(node.test.value);
    if (!test)
      throw new Error(`Unknown test: ${node.test.value}`);
    let result = test(operand);
    return new BooleanValue(node.negate ? !result : result);
  }
  /**
   * Evaluates expressions following the select operation type.
   */
  evaluateSelectExpression(node, environment) {
    return this.evaluate(node.test, environment).__bool__().value ? this.evaluate(node.lhs, environment) : new UndefinedValue();
  }
  /**
   * Evaluates expressions following the unary operation type.
   */
  evaluateUnaryExpression(node, environment) {
    let argument = this.evaluate(node.argument, environment);
    switch (node.operator.value) {
      case "not":
        return new BooleanValue(!argument.value);
      case "+":
      case "-": {
        let sign = node.operator.value === "-" ? -1 : 1;
        if (argument instanceof IntegerValue || argument instanceof FloatValue || argument instanceof BooleanValue) {
          let value = argument instanceof BooleanValue ? argument.value ? 1 : 0 : argument.value, result = sign * value;
          return argument instanceof FloatValue ? new FloatValue(result) : new IntegerValue(result);
        }
        throw new SyntaxError(`Unknown operator "${node.operator.value}" for ${argument.type}`);
      }
      default:
        throw new SyntaxError(`Unknown operator: ${node.operator.value}`);
    }
  }
  evaluateTernaryExpression(node, environment) {
    return this.evaluate(node.condition, environment).__bool__().value ? this.evaluate(node.trueExpr, environment) : this.evaluate(node.falseExpr, environment);
  }
  evalProgram(program, environment) {
    return this.evaluateBlock(program.body, environment);
  }
  evaluateBlock(statements, environment) {
    let result = "";
    for (let statement of statements) {
      let lastEvaluated = this.evaluate(statement, environment);
      lastEvaluated.type !== "NullValue" && lastEvaluated.type !== "UndefinedValue" && (result += lastEvaluated.toString());
    }
    return new StringValue(result);
  }
  evaluateIdentifier(node, environment) {
    return environment.lookupVariable(node.value);
  }
  evaluateCallExpression(expr, environment) {
    let [args, kwargs] = this.evaluateArguments(expr.args, environment);
    kwargs.size > 0 && args.push(new KeywordArgumentsValue(kwargs));
    let fn = this.evaluate(expr.callee, environment);
    if (fn.type !== "FunctionValue")
      throw new Error(`Cannot call something that is not a function: got ${fn.type}`);
    return fn.value(args, environment);
  }
  evaluateSliceExpression(object, expr, environment) {
    if (!(object instanceof ArrayValue || object instanceof StringValue))
      throw new Error("Slice object must be an array or string");
    let start = this.evaluate(expr.start, environment), stop = this.evaluate(expr.stop, environment), step = this.evaluate(expr.step, environment);
    if (!(start instanceof IntegerValue || start instanceof UndefinedValue))
      throw new Error("Slice start must be numeric or undefined");
    if (!(stop instanceof IntegerValue || stop instanceof UndefinedValue))
      throw new Error("Slice stop must be numeric or undefined");
    if (!(step instanceof IntegerValue || step instanceof UndefinedValue))
      throw new Error("Slice step must be numeric or undefined");
    return object instanceof ArrayValue ? new ArrayValue(slice(object.value, start.value, stop.value, step.value)) : new StringValue(slice(Array.from(object.value), start.value, stop.value, step.value).join(""));
  }
  evaluateMemberExpression(expr, environment) {
    let object = this.evaluate(expr.object, environment), property;
    if (expr.computed) {
      if (expr.property.type === "SliceExpression")
        return this.evaluateSliceExpression(object, expr.property, environment);
      property = this.evaluate(expr.property, environment);
    } else expr.property.type === "IntegerLiteral" ? property = new IntegerValue(expr.property.value) : property = new StringValue(expr.property.value);
    let value;
    if (isAttributeContainer(object)) {
      if (!(property instanceof StringValue))
        throw new Error(`Cannot access property with non-string: got ${property.type}`);
      value = object.value.get(property.value) ?? (object instanceof ObjectValue ? object.builtins.get(property.value) : void 0);
    } else if (object instanceof ArrayValue || object instanceof StringValue)
      if (property instanceof IntegerValue)
        value = object.value.at(property.value), object instanceof StringValue && (value = new StringValue(object.value.at(property.value)));
      else if (property instanceof StringValue)
        value = object.builtins.get(property.value);
      else
        throw new Error(`Cannot access property with non-string/non-number: got ${property.type}`);
    else {
      if (!(property instanceof StringValue))
        throw new Error(`Cannot access property with non-string: got ${property.type}`);
      value = object.builtins.get(property.value);
    }
    return value instanceof RuntimeValue ? value : new UndefinedValue();
  }
  evaluateSet(node, environment) {
    let rhs = node.value ? this.evaluate(node.value, environment) : this.evaluateBlock(node.body, environment);
    if (node.assignee.type === "Identifier") {
      let variableName = node.assignee.value;
      environment.setVariable(variableName, rhs);
    } else if (node.assignee.type === "TupleLiteral") {
      let tuple = node.assignee;
      if (!(rhs instanceof ArrayValue))
        throw new Error(`Cannot unpack non-iterable type in set: ${rhs.type}`);
      let arr = rhs.value;
      if (arr.length !== tuple.value.length)
        throw new Error(`Too ${tuple.value.length > arr.length ? "few" : "many"} items to unpack in set`);
      for (let i = 0; i < tuple.value.length; ++i) {
        let elem = tuple.value[i];
        if (elem.type !== "Identifier")
          throw new Error(`Cannot unpack to non-identifier in set: ${elem.type}`);
        environment.setVariable(elem.value, arr[i]);
      }
    } else if (node.assignee.type === "MemberExpression") {
      let member = node.assignee, object = this.evaluate(member.object, environment);
      if (!(object instanceof NamespaceValue))
        throw new Error("cannot assign attribute on non-namespace object");
      if (member.property.type !== "Identifier")
        throw new Error("Cannot assign to member with non-identifier property");
      object.value.set(member.property.value, rhs);
    } else
      throw new Error(`Invalid LHS inside assignment expression: ${JSON.stringify(node.assignee)}`);
    return new NullValue();
  }
  evaluateIf(node, environment) {
    let test = this.evaluate(node.test, environment);
    return this.evaluateBlock(test.__bool__().value ? node.body : node.alternate, environment);
  }
  evaluateFor(node, environment) {
    let scope = new Environment(environment), test, iterable;
    if (node.iterable.type === "SelectExpression") {
      let select = node.iterable;
      iterable = this.evaluate(select.lhs, scope), test = select.test;
    } else
      iterable = this.evaluate(node.iterable, scope);
    if (!(iterable instanceof ArrayValue || iterable instanceof ObjectValue))
      throw new Error(`Expected iterable or object type in for loop: got ${iterable.type}`);
    iterable instanceof ObjectValue && (iterable = iterable.keys());
    let items = [], scopeUpdateFunctions = [];
    for (let i = 0; i < iterable.value.length; ++i) {
      let loopScope = new Environment(scope), current = iterable.value[i], scopeUpdateFunction;
      if (node.loopvar.type === "Identifier")
        scopeUpdateFunction = (scope2) => scope2.setVariable(node.loopvar.value, current);
      else if (node.loopvar.type === "TupleLiteral") {
        let loopvar = node.loopvar;
        if (current.type !== "ArrayValue")
          throw new Error(`Cannot unpack non-iterable type: ${current.type}`);
        let c = current;
        if (loopvar.value.length !== c.value.length)
          throw new Error(`Too ${loopvar.value.length > c.value.length ? "few" : "many"} items to unpack`);
        scopeUpdateFunction = (scope2) => {
          for (let j = 0; j < loopvar.value.length; ++j) {
            if (loopvar.value[j].type !== "Identifier")
              throw new Error(`Cannot unpack non-identifier type: ${loopvar.value[j].type}`);
            scope2.setVariable(loopvar.value[j].value, c.value[j]);
          }
        };
      } else
        throw new Error(`Invalid loop variable(s): ${node.loopvar.type}`);
      test && (scopeUpdateFunction(loopScope), !this.evaluate(test, loopScope).__bool__().value) || (items.push(current), scopeUpdateFunctions.push(scopeUpdateFunction));
    }
    let result = "", noIteration = !0;
    for (let i = 0; i < items.length; ++i) {
      let loop = new Map([
        ["index", new IntegerValue(i + 1)],
        ["index0", new IntegerValue(i)],
        ["revindex", new IntegerValue(items.length - i)],
        ["revindex0", new IntegerValue(items.length - i - 1)],
        ["first", new BooleanValue(i === 0)],
        ["last", new BooleanValue(i === items.length - 1)],
        ["length", new IntegerValue(items.length)],
        ["previtem", i > 0 ? items[i - 1] : new UndefinedValue()],
        ["nextitem", i < items.length - 1 ? items[i + 1] : new UndefinedValue()]
      ]);
      scope.setVariable("loop", new ObjectValue(loop)), scopeUpdateFunctions[i](scope);
      try {
        let evaluated = this.evaluateBlock(node.body, scope);
        result += evaluated.value;
      } catch (err) {
        if (err instanceof ContinueControl)
          continue;
        if (err instanceof BreakControl)
          break;
        throw err;
      }
      noIteration = !1;
    }
    if (noIteration) {
      let defaultEvaluated = this.evaluateBlock(node.defaultBlock, scope);
      result += defaultEvaluated.value;
    }
    return new StringValue(result);
  }
  /**
   * Bind every parameter name and special argument before evaluating defaults,
   * preventing unbound parameters from resolving in an outer scope.
   */
  bindMacroArguments(displayName, parameters, specialArguments, args, scope) {
    let positionalArguments = args.slice(), keywordArguments = new Map();
    positionalArguments.at(-1) instanceof KeywordArgumentsValue && (keywordArguments = new Map(positionalArguments.pop().value));
    let pendingDefaults = [];
    for (let i = 0; i < parameters.length; ++i) {
      let { name, defaultValue } = getParameterDescriptor(parameters[i]), value = positionalArguments[i];
      value === void 0 && keywordArguments.has(name) && (value = keywordArguments.get(name), keywordArguments.delete(name)), value === void 0 && defaultValue !== void 0 && pendingDefaults.push([name, defaultValue]), scope.setVariable(name, value ?? new UndefinedValue());
    }
    if (specialArguments.has("kwargs"))
      scope.setVariable("kwargs", new ObjectValue(keywordArguments));
    else if (keywordArguments.size > 0)
      throw new Error(`macro ${displayName} takes no keyword argument '${keywordArguments.keys().next().value}'`);
    if (specialArguments.has("varargs"))
      scope.setVariable("varargs", new ArrayValue(positionalArguments.slice(parameters.length)));
    else if (positionalArguments.length > parameters.length)
      throw new Error(`macro ${displayName} takes not more than ${parameters.length} argument(s)`);
    for (let [name, defaultValue] of pendingDefaults)
      scope.setVariable(name, this.evaluate(defaultValue, scope));
  }
  /**
   * See https://jinja.palletsprojects.com/en/3.1.x/templates/#macros for more information.
   */
  evaluateMacro(node, environment) {
    let specialArguments = findAccessedSpecialMacroArguments(node.args, node.body);
    return environment.setVariable(
      node.name.value,
      new FunctionValue((args, scope) => {
        let macroScope = new Environment(scope);
        return this.bindMacroArguments(`'${node.name.value}'`, node.args, specialArguments, args, macroScope), this.evaluateBlock(node.body, macroScope);
      })
    ), new NullValue();
  }
  evaluateCallStatement(node, environment) {
    let parameters = node.callerArgs ?? [], specialArguments = findAccessedSpecialMacroArguments(parameters, node.body), callerFn = new FunctionValue((callerArguments) => {
      let callBlockEnv = new Environment(environment);
      return this.bindMacroArguments("None", parameters, specialArguments, callerArguments, callBlockEnv), this.evaluateBlock(node.body, callBlockEnv);
    }), [macroArgs, macroKwargs] = this.evaluateArguments(node.call.args, environment);
    macroArgs.push(new KeywordArgumentsValue(macroKwargs));
    let fn = this.evaluate(node.call.callee, environment);
    if (fn.type !== "FunctionValue")
      throw new Error(`Cannot call something that is not a function: got ${fn.type}`);
    let newEnv = new Environment(environment);
    return newEnv.setVariable("caller", callerFn), fn.value(macroArgs, newEnv);
  }
  evaluateFilterStatement(node, environment) {
    let rendered = this.evaluateBlock(node.body, environment);
    return this.applyFilter(rendered, node.filter, environment);
  }
  evaluate(statement, environment) {
    if (!statement)
      return new UndefinedValue();
    switch (statement.type) {
      case "Program":
        return this.evalProgram(statement, environment);
      case "Set":
        return this.evaluateSet(statement, environment);
      case "If":
        return this.evaluateIf(statement, environment);
      case "For":
        return this.evaluateFor(statement, environment);
      case "Macro":
        return this.evaluateMacro(statement, environment);
      case "CallStatement":
        return this.evaluateCallStatement(statement, environment);
      case "Break":
        throw new BreakControl();
      case "Continue":
        throw new ContinueControl();
      case "IntegerLiteral":
        return new IntegerValue(statement.value);
      case "FloatLiteral":
        return new FloatValue(statement.value);
      case "StringLiteral":
        return new StringValue(statement.value);
      case "ArrayLiteral":
        return new ArrayValue(statement.value.map((x) => this.evaluate(x, environment)));
      case "TupleLiteral":
        return new TupleValue(statement.value.map((x) => this.evaluate(x, environment)));
      case "ObjectLiteral": {
        let mapping = new Map();
        for (let [key, value] of statement.value) {
          let evaluatedKey = this.evaluate(key, environment);
          if (!(evaluatedKey instanceof StringValue))
            throw new Error(`Object keys must be strings: got ${evaluatedKey.type}`);
          mapping.set(evaluatedKey.value, this.evaluate(value, environment));
        }
        return new ObjectValue(mapping);
      }
      case "Identifier":
        return this.evaluateIdentifier(statement, environment);
      case "CallExpression":
        return this.evaluateCallExpression(statement, environment);
      case "MemberExpression":
        return this.evaluateMemberExpression(statement, environment);
      case "UnaryExpression":
        return this.evaluateUnaryExpression(statement, environment);
      case "BinaryExpression":
        return this.evaluateBinaryExpression(statement, environment);
      case "FilterExpression":
        return this.evaluateFilterExpression(statement, environment);
      case "FilterStatement":
        return this.evaluateFilterStatement(statement, environment);
      case "TestExpression":
        return this.evaluateTestExpression(statement, environment);
      case "SelectExpression":
        return this.evaluateSelectExpression(statement, environment);
      case "Ternary":
        return this.evaluateTernaryExpression(statement, environment);
      case "Comment":
        return new NullValue();
      default:
        throw new SyntaxError(`Unknown node type: ${statement.type}`);
    }
  }
};
function convertToRuntimeValues(input) {
  switch (typeof input) {
    case "number":
      return Number.isInteger(input) ? new IntegerValue(input) : new FloatValue(input);
    case "string":
      return new StringValue(input);
    case "boolean":
      return new BooleanValue(input);
    case "undefined":
      return new UndefinedValue();
    case "object":
      return input === null ? new NullValue() : Array.isArray(input) ? new ArrayValue(input.map(convertToRuntimeValues)) : new ObjectValue(
        new Map(Object.entries(input).map(([key, value]) => [key, convertToRuntimeValues(value)]))
      );
    case "function":
      return new FunctionValue((args, _scope) => {
        let result = input(...args.map((x) => x.value)) ?? null;
        return convertToRuntimeValues(result);
      });
    default:
      throw new Error(`Cannot convert to runtime value: ${input}`);
  }
}
var NEWLINE = `
`, OPEN_STATEMENT = "{%- ", CLOSE_STATEMENT = " -%}", PRECEDENCE = Object.freeze({
  CONDITIONAL: 0,
  // a if b else c
  LOGICAL_OR: 1,
  // or
  LOGICAL_AND: 2,
  // and
  LOGICAL_NOT: 3,
  // not a
  COMPARISON: 4,
  // == != < <= > >= in, not in
  ADDITIVE: 5,
  // + -
  MULTIPLICATIVE: 6,
  // * / // %
  EXPONENTIATION: 7,
  // **
  TEST: 8,
  // is
  FILTER: 9,
  // |
  UNARY_SIGN: 10,
  // -a +a
  ATOM: 11
  // literals, identifiers, calls, member accesses
});
function getBinaryOperatorPrecedence(expr) {
  switch (expr.operator.type) {
    case "ExponentiationBinaryOperator":
      return PRECEDENCE.EXPONENTIATION;
    case "MultiplicativeBinaryOperator":
      return PRECEDENCE.MULTIPLICATIVE;
    case "AdditiveBinaryOperator":
      return PRECEDENCE.ADDITIVE;
    case "ComparisonBinaryOperator":
      return PRECEDENCE.COMPARISON;
    case "Identifier":
      return expr.operator.value === "and" ? PRECEDENCE.LOGICAL_AND : expr.operator.value === "in" || expr.operator.value === "not in" ? PRECEDENCE.COMPARISON : PRECEDENCE.LOGICAL_OR;
  }
  return PRECEDENCE.LOGICAL_OR;
}
function getPrecedence(node) {
  switch (node.type) {
    case "SelectExpression":
    case "Ternary":
      return PRECEDENCE.CONDITIONAL;
    case "BinaryExpression":
      return getBinaryOperatorPrecedence(node);
    case "UnaryExpression":
      return node.operator.value === "not" ? PRECEDENCE.LOGICAL_NOT : PRECEDENCE.UNARY_SIGN;
    case "TestExpression":
      return PRECEDENCE.TEST;
    case "FilterExpression":
      return PRECEDENCE.FILTER;
    default:
      return PRECEDENCE.ATOM;
  }
}
function formatOperand(node, minPrecedence) {
  let expr = formatExpression(node);
  return getPrecedence(node) < minPrecedence ? `(${expr})` : expr;
}
function format(program, indent = "	") {
  let indentStr = typeof indent == "number" ? " ".repeat(indent) : indent;
  return formatStatements(program.body, 0, indentStr).replace(/\n$/, "");
}
function createStatement(...text) {
  return OPEN_STATEMENT + text.join(" ") + CLOSE_STATEMENT;
}
function formatStatements(stmts, depth, indentStr) {
  return stmts.map((stmt) => formatStatement(stmt, depth, indentStr)).join(NEWLINE);
}
function formatExpressionList(expressions) {
  return expressions.map((expression) => formatExpression(expression)).join(", ");
}
function formatStatement(node, depth, indentStr) {
  let pad = indentStr.repeat(depth);
  switch (node.type) {
    case "Program":
      return formatStatements(node.body, depth, indentStr);
    case "If":
      return formatIf(node, depth, indentStr);
    case "For":
      return formatFor(node, depth, indentStr);
    case "Set":
      return formatSet(node, depth, indentStr);
    case "Macro":
      return formatMacro(node, depth, indentStr);
    case "Break":
      return pad + createStatement("break");
    case "Continue":
      return pad + createStatement("continue");
    case "CallStatement":
      return formatCallStatement(node, depth, indentStr);
    case "FilterStatement":
      return formatFilterStatement(node, depth, indentStr);
    case "Comment":
      return pad + "{# " + node.value + " #}";
    default:
      return pad + "{{- " + formatExpression(node) + " -}}";
  }
}
function formatIf(node, depth, indentStr) {
  let pad = indentStr.repeat(depth), clauses = [], current = node;
  for (; current && (clauses.push({ test: current.test, body: current.body }), current.alternate.length === 1 && current.alternate[0].type === "If"); )
    current = current.alternate[0];
  let out = pad + createStatement("if", formatExpression(clauses[0].test)) + NEWLINE + formatStatements(clauses[0].body, depth + 1, indentStr);
  for (let i = 1; i < clauses.length; ++i)
    out += NEWLINE + pad + createStatement("elif", formatExpression(clauses[i].test)) + NEWLINE + formatStatements(clauses[i].body, depth + 1, indentStr);
  return current && current.alternate.length > 0 && (out += NEWLINE + pad + createStatement("else") + NEWLINE + formatStatements(current.alternate, depth + 1, indentStr)), out += NEWLINE + pad + createStatement("endif"), out;
}
function formatFor(node, depth, indentStr) {
  let pad = indentStr.repeat(depth), formattedIterable = "";
  if (node.iterable.type === "SelectExpression") {
    let n = node.iterable;
    formattedIterable = `${formatExpression(n.lhs)} if ${formatExpression(n.test)}`;
  } else
    formattedIterable = formatExpression(node.iterable);
  let out = pad + createStatement("for", formatExpression(node.loopvar), "in", formattedIterable) + NEWLINE + formatStatements(node.body, depth + 1, indentStr);
  return node.defaultBlock.length > 0 && (out += NEWLINE + pad + createStatement("else") + NEWLINE + formatStatements(node.defaultBlock, depth + 1, indentStr)), out += NEWLINE + pad + createStatement("endfor"), out;
}
function formatSet(node, depth, indentStr) {
  let pad = indentStr.repeat(depth), left = formatExpression(node.assignee), right = node.value ? formatExpression(node.value) : "", value = pad + createStatement("set", `${left}${node.value ? " = " + right : ""}`);
  return node.body.length === 0 ? value : value + NEWLINE + formatStatements(node.body, depth + 1, indentStr) + NEWLINE + pad + createStatement("endset");
}
function formatMacro(node, depth, indentStr) {
  let pad = indentStr.repeat(depth), args = formatExpressionList(node.args);
  return pad + createStatement("macro", `${node.name.value}(${args})`) + NEWLINE + formatStatements(node.body, depth + 1, indentStr) + NEWLINE + pad + createStatement("endmacro");
}
function formatCallStatement(node, depth, indentStr) {
  let pad = indentStr.repeat(depth), params = node.callerArgs && node.callerArgs.length > 0 ? `(${formatExpressionList(node.callerArgs)})` : "", callExpr = formatExpression(node.call), out = pad + createStatement(`call${params}`, callExpr) + NEWLINE;
  return out += formatStatements(node.body, depth + 1, indentStr) + NEWLINE, out += pad + createStatement("endcall"), out;
}
function formatFilterStatement(node, depth, indentStr) {
  let pad = indentStr.repeat(depth), spec = node.filter.type === "Identifier" ? node.filter.value : formatExpression(node.filter), out = pad + createStatement("filter", spec) + NEWLINE;
  return out += formatStatements(node.body, depth + 1, indentStr) + NEWLINE, out += pad + createStatement("endfilter"), out;
}
function formatExpression(node) {
  switch (node.type) {
    case "SpreadExpression":
      return `*${formatExpression(node.argument)}`;
    case "KeywordSpreadExpression":
      return `**${formatExpression(node.argument)}`;
    case "Identifier":
      return node.value;
    case "IntegerLiteral":
      return `${node.value}`;
    case "FloatLiteral": {
      let value = node.value;
      return Object.is(value, -0) ? "-0.0" : value % 1 === 0 ? value.toFixed(1) : value.toString();
    }
    case "StringLiteral":
      return JSON.stringify(node.value);
    case "BinaryExpression": {
      let n = node, thisPrecedence = getBinaryOperatorPrecedence(n), left = formatOperand(n.left, thisPrecedence), right = formatOperand(n.right, thisPrecedence + 1);
      return `${left} ${n.operator.value} ${right}`;
    }
    case "UnaryExpression": {
      let n = node, operandPrecedence = n.argument.type === "UnaryExpression" ? getPrecedence(n) : PRECEDENCE.ATOM;
      return n.operator.value + (n.operator.value === "not" ? " " : "") + formatOperand(n.argument, operandPrecedence);
    }
    case "CallExpression": {
      let n = node, args = formatExpressionList(n.args);
      return `${formatExpression(n.callee)}(${args})`;
    }
    case "MemberExpression": {
      let n = node, obj = formatOperand(n.object, PRECEDENCE.ATOM), prop = formatExpression(n.property);
      return !n.computed && n.property.type !== "Identifier" && n.property.type !== "IntegerLiteral" && (prop = `(${prop})`), n.computed ? `${obj}[${prop}]` : `${obj}.${prop}`;
    }
    case "FilterExpression": {
      let n = node, operand = formatOperand(n.operand, PRECEDENCE.FILTER);
      return n.filter.type === "CallExpression" ? `${operand} | ${formatExpression(n.filter)}` : `${operand} | ${n.filter.value}`;
    }
    case "SelectExpression": {
      let n = node;
      return `${formatOperand(n.lhs, PRECEDENCE.LOGICAL_OR)} if ${formatOperand(n.test, PRECEDENCE.LOGICAL_OR)}`;
    }
    case "TestExpression": {
      let n = node;
      return `${formatOperand(n.operand, PRECEDENCE.TEST)} is${n.negate ? " not" : ""} ${n.test.value}`;
    }
    case "ArrayLiteral":
    case "TupleLiteral": {
      let elems = formatExpressionList(node.value), brackets = node.type === "ArrayLiteral" ? "[]" : "()";
      return `${brackets[0]}${elems}${brackets[1]}`;
    }
    case "ObjectLiteral":
      return `{${Array.from(node.value.entries()).map(
        ([k, v]) => `${formatExpression(k)}: ${formatExpression(v)}`
      ).join(", ")}}`;
    case "SliceExpression": {
      let n = node, s = n.start ? formatExpression(n.start) : "", t = n.stop ? formatExpression(n.stop) : "", st = n.step ? `:${formatExpression(n.step)}` : "";
      return `${s}:${t}${st}`;
    }
    case "KeywordArgumentExpression": {
      let n = node;
      return `${n.key.value}=${formatExpression(n.value)}`;
    }
    case "Ternary": {
      let n = node;
      return `${formatOperand(n.trueExpr, PRECEDENCE.LOGICAL_OR)} if ${formatOperand(
        n.condition,
        PRECEDENCE.LOGICAL_OR
      )} else ${formatOperand(n.falseExpr, PRECEDENCE.CONDITIONAL)}`;
    }
    default:
      throw new Error(`Unknown expression type: ${node.type}`);
  }
}
var Template = class {
  parsed;
  /**
   * @param {string} template The template string
   */
  constructor(template) {
    let tokens = tokenize(template, {
      lstrip_blocks: !0,
      trim_blocks: !0
    });
    this.parsed = parse(tokens);
  }
  render(items) {
    let env = new Environment();
    if (setupGlobals(env), items)
      for (let [key, value] of Object.entries(items))
        env.set(key, value);
    return new Interpreter(env).run(this.parsed).value;
  }
  format(options) {
    return format(this.parsed, options?.indent || "	");
  }
};

// node_modules/@huggingface/tokenizers/dist/tokenizers.mjs
var DictionarySplitter = class {
  /**
   * @param dictionary The dictionary of words to use for splitting.
   */
  constructor(dictionary) {
    this.trie = this._build_trie(dictionary);
  }
  /**
   * Builds a trie from the given dictionary.
   * @param dictionary The dictionary of words to build the trie from.
   * @returns The root node of the trie.
   * @private
   */
  _build_trie(dictionary) {
    let trie = Object.create(null);
    for (let word of dictionary) {
      let node = trie;
      for (let i = 0; i < word.length; ++i) {
        let char = word[i];
        node = node[char] ??= Object.create(null);
      }
      node.end = word;
    }
    return trie;
  }
  /**
   * Splits the input text into tokens based on the dictionary.
   * @param text The input text to split.
   * @returns An array of tokens.
   */
  split(text) {
    let result = [], n = text.length, start = 0, i = 0;
    for (; i < n; ) {
      let node = this.trie, match = null, j = i;
      for (; j < n && (node = node[text[j]]); )
        node.end && (match = node.end), ++j;
      match ? (i > start && result.push(text.slice(start, i)), result.push(match), i += match.length, start = i) : ++i;
    }
    return start < n && result.push(text.slice(start)), result;
  }
}, DictionarySplitter_default = DictionarySplitter, AddedToken = class {
  /**
   * Creates a new instance of AddedToken.
   * @param config Added token configuration object.
   */
  constructor(config) {
    this.content = config.content, this.id = config.id, this.single_word = config.single_word ?? !1, this.lstrip = config.lstrip ?? !1, this.rstrip = config.rstrip ?? !1, this.special = config.special ?? !1, this.normalized = config.normalized ?? !this.special;
  }
}, AddedToken_default = AddedToken, compile_unicode_regexp = (source, flags) => {
  try {
    return new RegExp(source, flags);
  } catch (error) {
    if (!(error instanceof SyntaxError)) throw error;
    let property_names = new Map(), rewritten = source.replace(
      /(\\[pP])\{([^}=]+)\}/g,
      (text, p, n, offset) => {
        let preceding_backslashes = 0;
        for (let i = offset - 1; i >= 0 && source[i] === "\\"; --i)
          ++preceding_backslashes;
        if (preceding_backslashes % 2 === 1) return text;
        let property_name = property_names.get(n);
        if (property_name === void 0) {
          try {
            new RegExp(`\\p{${n}}`, "u"), property_name = n;
          } catch {
            property_name = `Script=${n}`;
          }
          property_names.set(n, property_name);
        }
        return `${p}{${property_name}}`;
      }
    );
    if (rewritten === source) throw error;
    try {
      return new RegExp(rewritten, flags);
    } catch {
      throw error;
    }
  }
}, clean_up_tokenization = (text) => text.replace(/ \./g, ".").replace(/ \?/g, "?").replace(/ \!/g, "!").replace(/ ,/g, ",").replace(/ \' /g, "'").replace(/ n't/g, "n't").replace(/ 'm/g, "'m").replace(/ 's/g, "'s").replace(/ 've/g, "'ve").replace(/ 're/g, "'re"), create_pattern = (pattern, invert = !0) => {
  if (pattern.Regex !== void 0) {
    let regex = rewrite_oniguruma_to_js(
      normalize_bloom_split_char_class(pattern.Regex)
    );
    return compile_unicode_regexp(regex, "gu");
  } else if (pattern.String !== void 0) {
    let escaped = escape_reg_exp(pattern.String);
    return new RegExp(invert ? escaped : `(${escaped})`, "gu");
  } else
    return console.warn("Unknown pattern type:", pattern), null;
}, UNICODE_WORD_CHARS_IN_CLASS = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}", UNICODE_WORD_CHARS = `${UNICODE_WORD_CHARS_IN_CLASS}\\u00B2\\u00B3\\u00B9\\u00BC-\\u00BE`, UNICODE_WORD_CLASS = `[${UNICODE_WORD_CHARS}]`, UNICODE_NON_WORD_CLASS = `[^${UNICODE_WORD_CHARS}]`, UNICODE_WORD_BOUNDARY = `(?:(?<!${UNICODE_WORD_CLASS})(?=${UNICODE_WORD_CLASS})|(?<=${UNICODE_WORD_CLASS})(?!${UNICODE_WORD_CLASS}))`, UNICODE_NON_WORD_BOUNDARY = `(?:(?<!${UNICODE_WORD_CLASS})(?!${UNICODE_WORD_CLASS})|(?<=${UNICODE_WORD_CLASS})(?=${UNICODE_WORD_CLASS}))`, LINE_START_ANCHOR = "(?:(?<![\\s\\S])|(?<=\\n))", LINE_END_ANCHOR = "(?:(?=\\n)|(?![\\s\\S]))", HEX_DIGIT_CHARS = "0-9A-Fa-f", ESCAPE_REWRITES = new Map([
  ["A", "(?<![\\s\\S])"],
  ["z", "(?![\\s\\S])"],
  ["Z", "(?=\\n?(?![\\s\\S]))"],
  // \Z permits a single optional final \n (not \r\n)
  ["h", `[${HEX_DIGIT_CHARS}]`],
  ["H", `[^${HEX_DIGIT_CHARS}]`],
  ["w", UNICODE_WORD_CLASS],
  ["W", UNICODE_NON_WORD_CLASS],
  ["d", "\\p{Nd}"],
  ["D", "\\P{Nd}"],
  ["s", "\\p{White_Space}"],
  // JS \s wrongly adds U+FEFF and misses \x85
  ["S", "\\P{White_Space}"],
  ["b", UNICODE_WORD_BOUNDARY],
  ["B", UNICODE_NON_WORD_BOUNDARY],
  ["a", "\\x07"],
  ["e", "\\x1B"]
]), CLASS_ESCAPE_REWRITES = new Map([
  ["h", HEX_DIGIT_CHARS],
  ["w", UNICODE_WORD_CHARS_IN_CLASS],
  ["d", "\\p{Nd}"],
  ["D", "\\P{Nd}"],
  ["s", "\\p{White_Space}"],
  ["S", "\\P{White_Space}"],
  ["a", "\\x07"],
  ["e", "\\x1B"]
]), CLASS_COMPLEMENT_ALTERNATIVES = new Map([
  ["W", `[^${UNICODE_WORD_CHARS_IN_CLASS}]`],
  ["H", `[^${HEX_DIGIT_CHARS}]`]
]), RAW_WHITESPACE_ESCAPES = new Map([
  [`
`, "\\n"],
  ["\r", "\\r"],
  ["	", "\\t"],
  ["\f", "\\f"],
  ["\v", "\\v"]
]), POSIX_CLASS_FRAGMENTS = new Map([
  ["alpha", "\\p{Alphabetic}"],
  ["alnum", "\\p{Alphabetic}\\p{Nd}"],
  ["digit", "\\p{Nd}"],
  ["lower", "\\p{Lowercase}"],
  ["upper", "\\p{Uppercase}"],
  ["space", "\\p{White_Space}"],
  ["blank", "\\t\\p{Zs}"],
  ["punct", "\\p{P}\\p{S}"],
  ["cntrl", "\\p{Cc}"],
  ["word", UNICODE_WORD_CHARS_IN_CLASS],
  ["xdigit", HEX_DIGIT_CHARS]
]), JS_SYNTAX_CHARS = "^$\\.*+?()[]{}|/", GROUP_PREFIX_RE = /^\(\?(?:<[=!]|<[A-Za-z_][A-Za-z0-9_]*>|[:=!>])/, BRACED_ESCAPE_RE = /^\\([pPxu])\{([^}]*)\}/, QUANTIFIER_BRACE_RE = /^\{(\d+(?:,\d*)?|,\d+)\}/, POSIX_BRACKET_RE = /^\[:(\^?)(\p{Alphabetic}+):\]/u, EMPTY_NEGATED_POSIX_BRACKET_RE = /^\[:\^:\]/, UNSUPPORTED_POSIX_BRACKET_RE = /^\[(?:\.[^\]]*\.\]|=[^\]]*=\])/, FIXED_WIDTH_ESCAPE_RE = /^(?:\\x[0-9A-Fa-f]{2}|\\u[0-9A-Fa-f]{4}|\\c[A-Za-z])/, is_ascii_letter = (char) => char >= "A" && char <= "Z" || char >= "a" && char <= "z", character_at = (text, index) => String.fromCodePoint(text.codePointAt(index)), get_ascii_folded_hex_atom = (hex) => {
  if (!/^[0-9A-Fa-f]{1,8}$/.test(hex)) return null;
  let code_point = Number.parseInt(hex, 16);
  if (code_point > 127) return null;
  let letter = String.fromCharCode(code_point);
  return is_ascii_letter(letter) ? `[${letter.toLowerCase()}${letter.toUpperCase()}]` : null;
}, normalize_bloom_split_char_class = (regex) => regex.replace(/\[\^\(\\s\|\[([^\]]+)\]\)\]/g, "[^()|\\s$1]"), ANY_CODE_POINT = "[\\s\\S]", MAX_CHARACTER_CLASS_NESTING_DEPTH = 256, create_character_class_operand = () => ({
  fragment: "",
  alternatives: [],
  tail: null,
  contains_complex_set: !1
}), throw_character_class_range_error = (index) => {
  throw new SyntaxError(
    `Unsupported range with a set-valued character-class operand at index ${index}`
  );
}, add_character_class_atom = (operand, atom, index, contains_complex_set = !0) => {
  operand.tail === "range" && throw_character_class_range_error(index), operand.alternatives.push(atom), operand.tail = "set", operand.contains_complex_set = operand.contains_complex_set || contains_complex_set;
}, append_character_class_fragment = (operand, fragment, set_valued = !1, index = -1) => {
  if (set_valued && operand.tail === "range" && throw_character_class_range_error(index), operand.tail === "range") {
    operand.fragment += fragment, operand.tail = "complete_range";
    return;
  }
  operand.fragment += fragment, operand.tail = set_valued ? "set" : "scalar", operand.contains_complex_set = operand.contains_complex_set || set_valued;
}, rewrite_character_class_escape = (regex, index, operand) => {
  let braced = BRACED_ESCAPE_RE.exec(regex.slice(index));
  if (braced) {
    let [text, kind, body] = braced;
    if (kind === "P" && body === "Word")
      add_character_class_atom(
        operand,
        `[^${UNICODE_WORD_CHARS_IN_CLASS}]`,
        index
      );
    else {
      let replacement2 = kind === "x" ? `\\u{${body}}` : kind === "p" && body === "Word" ? UNICODE_WORD_CHARS_IN_CLASS : text;
      append_character_class_fragment(
        operand,
        replacement2,
        kind === "p" || kind === "P",
        index
      );
    }
    return index + text.length;
  }
  let fixed_width = FIXED_WIDTH_ESCAPE_RE.exec(regex.slice(index));
  if (fixed_width)
    return append_character_class_fragment(operand, fixed_width[0]), index + fixed_width[0].length;
  if (index + 1 >= regex.length)
    throw new SyntaxError(
      `Unterminated escape in character class at index ${index}`
    );
  let next = character_at(regex, index + 1), next_end = index + 1 + next.length, raw_whitespace = RAW_WHITESPACE_ESCAPES.get(next);
  if (raw_whitespace !== void 0)
    return append_character_class_fragment(operand, raw_whitespace), next_end;
  let complement = CLASS_COMPLEMENT_ALTERNATIVES.get(next);
  if (complement !== void 0)
    return add_character_class_atom(operand, complement, index), next_end;
  let rewrite = CLASS_ESCAPE_REWRITES.get(next), replacement, set_valued = !1;
  return rewrite !== void 0 ? (replacement = rewrite, set_valued = next !== "a" && next !== "e") : /[A-Za-z0-9]/.test(next) ? replacement = `\\${next}` : JS_SYNTAX_CHARS.includes(next) || next === "-" ? replacement = `\\${next}` : replacement = next, append_character_class_fragment(operand, replacement, set_valued, index), next_end;
}, compile_character_set_union = (pieces) => pieces.length === 1 ? pieces[0] : `(?:(?=(?:${pieces.join("|")}))${ANY_CODE_POINT})`, compile_character_class_operand = (operand) => {
  let pieces = operand.fragment.length === 0 ? operand.alternatives : [`[${operand.fragment}]`, ...operand.alternatives];
  return compile_character_set_union(pieces);
}, get_ascii_fold_additions = (positive_atom) => {
  let membership = compile_unicode_regexp(`^(?:${positive_atom})$`, "u"), additions = "";
  for (let offset = 0; offset < 26; ++offset) {
    let upper = String.fromCharCode(65 + offset), lower = String.fromCharCode(97 + offset), has_upper = membership.test(upper), has_lower = membership.test(lower);
    has_upper !== has_lower && (additions += has_upper ? lower : upper);
  }
  return additions;
}, parse_character_class = (regex, start, ascii_fold, apply_ascii_fold = !0, nesting_depth = 1) => {
  if (nesting_depth > MAX_CHARACTER_CLASS_NESTING_DEPTH)
    throw new SyntaxError(
      `Maximum character-class nesting depth of ${MAX_CHARACTER_CLASS_NESTING_DEPTH} exceeded at index ${start}`
    );
  let i = start + 1, negated = regex[i] === "^";
  negated && ++i;
  let first_content_index = i, operands = [create_character_class_operand()], operand = operands[0], contains_nested_negated_complex_set = !1;
  for (; i < regex.length; ) {
    let char = character_at(regex, i);
    if (char === "\\") {
      i = rewrite_character_class_escape(regex, i, operand);
      continue;
    }
    if (char === "]") {
      if (i === first_content_index) {
        append_character_class_fragment(operand, "\\]"), ++i;
        continue;
      }
      if (operand.tail === null)
        throw operands.length > 1 ? new SyntaxError(
          `Malformed character-class intersection with an empty operand at index ${i}`
        ) : new SyntaxError(`Empty character class at index ${start}`);
      let contains_complex_set = operands.some(
        (candidate) => candidate.contains_complex_set
      );
      if (negated && operands.length > 1 && contains_nested_negated_complex_set)
        throw new SyntaxError(
          `Unsupported outer-negated character-class intersection with a nested negated class containing a Unicode property, POSIX class, or shorthand at index ${start}`
        );
      let first_atom = compile_character_class_operand(operands[0]), positive_atom = first_atom;
      if (operands.length > 1) {
        let lookaheads = "";
        for (let j = 1; j < operands.length; ++j)
          lookaheads += `(?=${compile_character_class_operand(operands[j])})`;
        positive_atom = `(?:${lookaheads}${first_atom})`;
      }
      let is_direct_class = operands.length === 1 && operand.alternatives.length === 0, direct_fragment = operand.fragment;
      if (ascii_fold && apply_ascii_fold) {
        let additions = get_ascii_fold_additions(positive_atom);
        additions.length > 0 && (is_direct_class ? (direct_fragment += additions, positive_atom = `[${direct_fragment}]`) : positive_atom = compile_character_set_union([
          positive_atom,
          `[${additions}]`
        ]));
      }
      return {
        atom: negated ? is_direct_class ? `[^${direct_fragment}]` : `(?:(?!${positive_atom})${ANY_CODE_POINT})` : positive_atom,
        end: i + 1,
        negated,
        contains_complex_set,
        contains_nested_negated_complex_set
      };
    }
    if (regex.startsWith("&&", i)) {
      if (operand.tail === null)
        throw new SyntaxError(
          `Malformed character-class intersection with an empty operand at index ${i}`
        );
      operand = create_character_class_operand(), operands.push(operand), i += 2;
      continue;
    }
    if (char === "[") {
      let suffix = regex.slice(i);
      if (EMPTY_NEGATED_POSIX_BRACKET_RE.test(suffix))
        throw new SyntaxError(
          `Malformed empty negated POSIX character class at index ${i}`
        );
      let posix = POSIX_BRACKET_RE.exec(suffix);
      if (posix) {
        let [, posix_negated, name] = posix, fragment = POSIX_CLASS_FRAGMENTS.get(name);
        if (fragment === void 0)
          throw new SyntaxError(
            `Unsupported POSIX character class "${name}" at index ${i}`
          );
        if (ascii_fold && posix_negated && (name === "lower" || name === "upper"))
          throw new SyntaxError(
            `Unsupported negated POSIX ${name} class inside an inline case-insensitive group`
          );
        posix_negated ? add_character_class_atom(operand, `[^${fragment}]`, i) : append_character_class_fragment(operand, fragment, !0, i), i += posix[0].length;
        continue;
      }
      if (UNSUPPORTED_POSIX_BRACKET_RE.test(suffix))
        throw new SyntaxError(
          `Unsupported POSIX collating or equivalence bracket expression at index ${i}`
        );
      let nested = parse_character_class(
        regex,
        i,
        ascii_fold,
        !1,
        nesting_depth + 1
      );
      add_character_class_atom(
        operand,
        nested.atom,
        i,
        nested.contains_complex_set
      ), contains_nested_negated_complex_set ||= nested.contains_nested_negated_complex_set || nested.negated && nested.contains_complex_set, i = nested.end;
      continue;
    }
    if (char === "-") {
      let is_terminal_literal = regex[i + 1] === "]" || regex.startsWith("&&", i + 1);
      operand.tail === "set" && !is_terminal_literal && throw_character_class_range_error(i), operand.tail === null || operand.tail === "range" || operand.tail === "complete_range" || is_terminal_literal ? append_character_class_fragment(operand, "\\-") : (operand.fragment += "-", operand.tail = "range"), ++i;
      continue;
    }
    append_character_class_fragment(
      operand,
      char === "^" && operand.fragment.length === 0 ? "\\^" : char
    ), i += char.length;
  }
  throw new SyntaxError(
    `${operands.length > 1 ? "Unterminated character-class intersection" : "Unterminated character class"} at index ${start}`
  );
}, rewrite_oniguruma_to_js = (regex) => {
  let out = "", atom_start = -1, last_was_quantifier = !1, ascii_fold = !1, group_states = [], emit_atom = (text) => {
    atom_start = out.length, out += text, last_was_quantifier = !1;
  };
  for (let i = 0; i < regex.length; ) {
    let char = character_at(regex, i);
    if (char === "\\") {
      let braced = BRACED_ESCAPE_RE.exec(regex.slice(i));
      if (braced) {
        let [text, kind, body] = braced, replacement2 = text;
        if (kind === "x") {
          let code_point_escape = `\\u{${body}}`;
          replacement2 = ascii_fold ? get_ascii_folded_hex_atom(body) ?? code_point_escape : code_point_escape;
        } else body === "Word" && (replacement2 = kind === "p" ? UNICODE_WORD_CLASS : UNICODE_NON_WORD_CLASS);
        emit_atom(replacement2), i += text.length;
        continue;
      }
      let fixed_width = FIXED_WIDTH_ESCAPE_RE.exec(regex.slice(i));
      if (fixed_width) {
        let text = fixed_width[0], replacement2 = ascii_fold && text[1] !== "c" ? get_ascii_folded_hex_atom(text.slice(2)) ?? text : text;
        emit_atom(replacement2), i += text.length;
        continue;
      }
      if (i + 1 >= regex.length) {
        out += char;
        break;
      }
      let next = character_at(regex, i + 1);
      if (i += 1 + next.length, next === "G")
        continue;
      let raw_whitespace = RAW_WHITESPACE_ESCAPES.get(next);
      if (raw_whitespace !== void 0) {
        emit_atom(raw_whitespace);
        continue;
      }
      let rewrite = ESCAPE_REWRITES.get(next), replacement;
      rewrite !== void 0 ? replacement = rewrite : /[A-Za-z0-9]/.test(next) ? replacement = `\\${next}` : JS_SYNTAX_CHARS.includes(next) ? replacement = `\\${next}` : replacement = next, emit_atom(replacement);
      continue;
    }
    switch (char) {
      case "[": {
        let parsed2 = parse_character_class(regex, i, ascii_fold);
        emit_atom(parsed2.atom), i = parsed2.end;
        continue;
      }
      case "]":
        emit_atom("\\]"), ++i;
        continue;
      case ".":
        emit_atom("[^\\n]"), ++i;
        continue;
      case "^":
        emit_atom(LINE_START_ANCHOR), ++i;
        continue;
      case "$":
        emit_atom(LINE_END_ANCHOR), ++i;
        continue;
      case "(": {
        let inline_case_insensitive = regex.startsWith("(?i:", i), source_prefix = inline_case_insensitive ? "(?i:" : GROUP_PREFIX_RE.exec(regex.slice(i))?.[0] ?? "(", output_prefix = inline_case_insensitive || source_prefix === "(?>" ? "(?:" : source_prefix;
        group_states.push([out.length, ascii_fold]), inline_case_insensitive && (ascii_fold = !0), out += output_prefix, last_was_quantifier = !1, i += source_prefix.length;
        continue;
      }
      case ")":
        out += char, [atom_start, ascii_fold] = group_states.pop() ?? [-1, !1], last_was_quantifier = !1, ++i;
        continue;
      case "|":
        out += char, atom_start = -1, last_was_quantifier = !1, ++i;
        continue;
      case "{": {
        let quant = QUANTIFIER_BRACE_RE.exec(regex.slice(i));
        if (!quant || atom_start < 0) {
          emit_atom("\\{"), ++i;
          continue;
        }
        let body = quant[1].startsWith(",") ? `0${quant[1]}` : quant[1];
        i += quant[0].length;
        let following = regex[i];
        following === "+" || following === "*" ? (out = `${out.slice(0, atom_start)}(?:${out.slice(atom_start)}{${body}})${following}`, ++i) : out += `{${body}}`, last_was_quantifier = !0;
        continue;
      }
      case "}":
        emit_atom("\\}"), ++i;
        continue;
      case "+":
        if (last_was_quantifier) {
          ++i;
          continue;
        }
        out += char, last_was_quantifier = !0, ++i;
        continue;
      case "*":
      case "?":
        out += char, last_was_quantifier = !0, ++i;
        continue;
      default:
        emit_atom(
          ascii_fold && is_ascii_letter(char) ? `[${char.toLowerCase()}${char.toUpperCase()}]` : char
        ), i += char.length;
        continue;
    }
  }
  return out;
}, escape_reg_exp = (string) => string.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), fuse_unk = (arr, tokens_to_ids, unk_token_id) => {
  let fused = [], i = 0;
  for (; i < arr.length; ) {
    if (fused.push(arr[i]), (tokens_to_ids.get(arr[i]) ?? unk_token_id) !== unk_token_id) {
      ++i;
      continue;
    }
    for (; ++i < arr.length && (tokens_to_ids.get(arr[i]) ?? unk_token_id) === unk_token_id; )
      tokens_to_ids.get(fused.at(-1)) !== unk_token_id && (fused[fused.length - 1] += arr[i]);
  }
  return fused;
}, is_chinese_char = (cp) => cp >= 19968 && cp <= 40959 || cp >= 13312 && cp <= 19903 || cp >= 131072 && cp <= 173791 || cp >= 173824 && cp <= 177983 || cp >= 177984 && cp <= 178207 || cp >= 178208 && cp <= 183983 || cp >= 63744 && cp <= 64255 || cp >= 194560 && cp <= 195103, is_integral_number = (x) => Number.isInteger(x) || typeof x == "bigint", len = (s) => {
  let length = 0;
  for (let c of s) ++length;
  return length;
}, lowercase_and_remove_accents = (text) => remove_accents(text.toLowerCase()), merge_arrays = (...arrs) => Array.prototype.concat.apply([], arrs), object_to_map = (obj) => new Map(Object.entries(obj)), regex_split = (text, regex) => {
  let result = [], prev = 0;
  for (let match of text.matchAll(regex)) {
    let full_match = match[0];
    prev < match.index && result.push(text.slice(prev, match.index)), full_match.length > 0 && result.push(full_match), prev = match.index + full_match.length;
  }
  return prev < text.length && result.push(text.slice(prev)), result;
}, remove_accents = (text) => text.replace(/\p{M}/gu, ""), validate_object = (obj, name, required_keys = []) => {
  if (!obj || Array.isArray(obj) || typeof obj != "object")
    return `${name} must be a valid object`;
  for (let key of required_keys)
    if (!(key in obj))
      return `${name} must contain a "${key}" property`;
  return null;
}, whitespace_split = (text) => text.match(/\S+/g) || [], Callable = class {
  /**
   * Creates a new instance of the Callable class.
   */
  constructor() {
    let closure = function(...args) {
      return closure._call(...args);
    };
    return Object.setPrototypeOf(closure, new.target.prototype);
  }
}, Callable_default = Callable, Normalizer = class extends Callable_default {
  /**
   * @param config The configuration object for the normalizer.
   */
  constructor(config) {
    super(), this.config = config;
  }
  /**
   * Alias for {@link Normalizer#normalize}.
   * @param text The text to normalize.
   * @returns The normalized text.
   */
  _call(text) {
    return this.normalize(text);
  }
}, Normalizer_default = Normalizer, BertNormalizer = class extends Normalizer_default {
  /**
   * Adds whitespace around any CJK (Chinese, Japanese, or Korean) character in the input text.
   *
   * @param text The input text to tokenize.
   * @returns The tokenized text with whitespace added around CJK characters.
   */
  tokenize_chinese_chars(text) {
    let output = [];
    for (let i = 0; i < text.length; ++i) {
      let char = text[i], cp = char.charCodeAt(0);
      is_chinese_char(cp) ? (output.push(" "), output.push(char), output.push(" ")) : output.push(char);
    }
    return output.join("");
  }
  /**
   * Strips accents from the given text.
   * @param text The text to strip accents from.
   * @returns The text with accents removed.
   */
  strip_accents(text) {
    return text.normalize("NFD").replace(/\p{Mn}/gu, "");
  }
  /**
   * Checks whether `char` is a control character.
   * @param char The character to check.
   * @returns Whether `char` is a control character.
   */
  is_control(char) {
    switch (char) {
      case "	":
      case `
`:
      case "\r":
        return !1;
      default:
        return /^\p{Cc}|\p{Cf}|\p{Co}|\p{Cs}$/u.test(char);
    }
  }
  /**
   * Performs invalid character removal and whitespace cleanup on text.
   * @param text The text to clean.
   * @returns The cleaned text.
   */
  clean_text(text) {
    let output = [];
    for (let char of text) {
      let cp = char.charCodeAt(0);
      cp === 0 || cp === 65533 || this.is_control(char) || (/^\s$/.test(char) ? output.push(" ") : output.push(char));
    }
    return output.join("");
  }
  /**
   * Normalizes the given text based on the configuration.
   * @param text The text to normalize.
   * @returns The normalized text.
   */
  normalize(text) {
    return this.config.clean_text && (text = this.clean_text(text)), this.config.handle_chinese_chars && (text = this.tokenize_chinese_chars(text)), this.config.lowercase ? (text = text.toLowerCase(), this.config.strip_accents !== !1 && (text = this.strip_accents(text))) : this.config.strip_accents && (text = this.strip_accents(text)), text;
  }
}, BertNormalizer_default = BertNormalizer, Precompiled = class extends Normalizer_default {
  /**
   * Create a new instance of Precompiled normalizer.
   * @param config The configuration object.
   */
  constructor(config) {
    super(config), this.charsmap = config.precompiled_charsmap ?? null;
  }
  /**
   * Normalizes the given text by applying the precompiled charsmap.
   * @param text The text to normalize.
   * @returns The normalized text.
   */
  normalize(text) {
    return text = text.replace(
      /[\u0001-\u0008\u000B\u000E-\u001F\u007F\u008F\u009F]/gm,
      ""
    ), text = text.replace(
      /[\u0009\u000A\u000C\u000D\u00A0\u1680\u2000-\u200F\u2028\u2029\u202F\u205F\u2581\u3000\uFEFF\uFFFD]/gm,
      " "
    ), text.includes("～") ? text = text.split("～").map((part) => part.normalize("NFKC")).join("～") : text = text.normalize("NFKC"), text;
  }
}, Precompiled_default = Precompiled, Sequence = class extends Normalizer_default {
  /**
   * Create a new instance of NormalizerSequence.
   * @param config The configuration object.
   */
  constructor(config) {
    super(config), this.normalizers = (config.normalizers ?? []).map(
      (x) => create_normalizer_default(x)
    );
  }
  /**
   * Apply a sequence of Normalizers to the input text.
   * @param text The text to normalize.
   * @returns The normalized text.
   */
  normalize(text) {
    return this.normalizers.reduce((t, normalizer) => normalizer ? normalizer.normalize(t) : t, text);
  }
}, Sequence_default = Sequence, Replace = class extends Normalizer_default {
  /**
   * @param config The configuration object for the normalizer.
   */
  constructor(config) {
    super(config), this.pattern = create_pattern(this.config.pattern ?? {});
  }
  /**
   * Normalize the input text by replacing the pattern with the content.
   * @param text The input text to be normalized.
   * @returns The normalized text after replacing the pattern with the content.
   */
  normalize(text) {
    return this.pattern === null ? text : text.replaceAll(this.pattern, this.config.content ?? "");
  }
}, Replace_default = Replace, UnicodeNormalizer = class extends Normalizer_default {
  constructor() {
    super(...arguments), this.form = "NFC";
  }
  /**
   * Normalize the input text by applying Unicode normalization.
   * @param text The input text to be normalized.
   * @returns The normalized text.
   */
  normalize(text) {
    return text = text.normalize(this.form), text;
  }
}, UnicodeNormalizer_default = UnicodeNormalizer, NFC = class extends UnicodeNormalizer_default {
  constructor() {
    super(...arguments), this.form = "NFC";
  }
}, NFC_default = NFC, NFD = class extends UnicodeNormalizer_default {
  constructor() {
    super(...arguments), this.form = "NFD";
  }
}, NFD_default = NFD, NFKC = class extends UnicodeNormalizer_default {
  constructor() {
    super(...arguments), this.form = "NFKC";
  }
}, NFKC_default = NFKC, NFKD = class extends UnicodeNormalizer_default {
  constructor() {
    super(...arguments), this.form = "NFKD";
  }
}, NFKD_default = NFKD, Strip = class extends Normalizer_default {
  /**
   * Strip leading and/or trailing whitespace from the input text.
   * @param text The input text.
   * @returns The normalized text.
   */
  normalize(text) {
    return this.config.strip_left && this.config.strip_right ? text = text.trim() : (this.config.strip_left && (text = text.trimStart()), this.config.strip_right && (text = text.trimEnd())), text;
  }
}, Strip_default = Strip, StripAccents = class extends Normalizer_default {
  /**
   * Remove all accents from the text.
   * @param text The input text.
   * @returns The normalized text without accents.
   */
  normalize(text) {
    return remove_accents(text);
  }
}, StripAccents_default = StripAccents, Lowercase = class extends Normalizer_default {
  /**
   * Lowercases the input string.
   * @param {string} text The text to normalize.
   * @returns {string} The normalized text.
   */
  normalize(text) {
    return text.toLowerCase();
  }
}, Lowercase_default = Lowercase, Prepend = class extends Normalizer_default {
  /**
   * Prepends the input string.
   * @param text The text to normalize.
   * @returns The normalized text.
   */
  normalize(text) {
    return text = this.config.prepend + text, text;
  }
}, Prepend_default = Prepend;
function create_normalizer(config) {
  if (config === null) return null;
  switch (config.type) {
    case "BertNormalizer":
      return new BertNormalizer_default(config);
    case "Precompiled":
      return new Precompiled_default(config);
    case "Sequence":
      return new Sequence_default(config);
    case "Replace":
      return new Replace_default(config);
    case "NFC":
      return new NFC_default(config);
    case "NFD":
      return new NFD_default(config);
    case "NFKC":
      return new NFKC_default(config);
    case "NFKD":
      return new NFKD_default(config);
    case "Strip":
      return new Strip_default(config);
    case "StripAccents":
      return new StripAccents_default(config);
    case "Lowercase":
      return new Lowercase_default(config);
    case "Prepend":
      return new Prepend_default(config);
    default:
      throw new Error(`Unknown Normalizer type: ${config.type}`);
  }
}
var create_normalizer_default = create_normalizer, PreTokenizer = class extends Callable_default {
  /**
   * Tokenizes the given text into pre-tokens.
   * @param text The text or array of texts to pre-tokenize.
   * @param options Additional options for the pre-tokenization logic.
   * @returns An array of pre-tokens.
   */
  pre_tokenize(text, options) {
    return (Array.isArray(text) ? text.map((x) => this.pre_tokenize_text(x, options)) : this.pre_tokenize_text(text, options)).flat();
  }
  /**
   * Alias for {@link PreTokenizer#pre_tokenize}.
   * @param text The text or array of texts to pre-tokenize.
   * @param options Additional options for the pre-tokenization logic.
   * @returns An array of pre-tokens.
   */
  _call(text, options) {
    return this.pre_tokenize(text, options);
  }
}, PreTokenizer_default = PreTokenizer, BYTES_TO_UNICODE = (() => {
  let bs = [
    ...Array.from(
      { length: 94 },
      (_, i) => i + 33
    ),
    ...Array.from(
      { length: 12 },
      (_, i) => i + 161
    ),
    ...Array.from(
      { length: 82 },
      (_, i) => i + 174
    )
  ], cs = bs.slice(), n = 0;
  for (let b = 0; b < 256; ++b)
    bs.includes(b) || (bs.push(b), cs.push(256 + n), n += 1);
  let ccs = cs.map((n2) => String.fromCharCode(n2));
  return Object.fromEntries(bs.map((b, i) => [b, ccs[i]]));
})(), reverse_dictionary = (data) => Object.fromEntries(Object.entries(data).map(([key, value]) => [value, key])), UNICODE_TO_BYTES = reverse_dictionary(BYTES_TO_UNICODE), PUNCTUATION_REGEX = "\\p{P}\\u0021-\\u002F\\u003A-\\u0040\\u005B-\\u0060\\u007B-\\u007E", ByteLevel = class extends PreTokenizer_default {
  /**
   * Creates a new instance of the `ByteLevelPreTokenizer` class.
   * @param config The configuration object.
   */
  constructor(config) {
    super(), this.config = config, this.add_prefix_space = this.config.add_prefix_space ?? !1, this.trim_offsets = this.config.trim_offsets ?? !1, this.use_regex = this.config.use_regex ?? !0, this.pattern = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+/gu, this.byte_encoder = BYTES_TO_UNICODE, this.text_encoder = new TextEncoder();
  }
  /**
   * Tokenizes a single piece of text using byte-level tokenization.
   * @param text The text to tokenize.
   * @param options Additional options for the pre-tokenization logic.
   * @returns An array of tokens.
   */
  pre_tokenize_text(text, options) {
    return this.add_prefix_space && !text.startsWith(" ") && (text = " " + text), (this.use_regex ? text.match(this.pattern) || [] : [text]).map(
      (token) => Array.from(
        this.text_encoder.encode(token),
        (byte) => this.byte_encoder[byte]
      ).join("")
    );
  }
}, ByteLevel_default = ByteLevel, Whitespace = class extends PreTokenizer_default {
  /**
   * Pre-tokenizes the input text by splitting it on word boundaries.
   * @param text The text to be pre-tokenized.
   * @param options Additional options for the pre-tokenization logic.
   * @returns An array of tokens produced by splitting the input text on whitespace.
   */
  pre_tokenize_text(text, options) {
    return text.match(/\w+|[^\w\s]+/g) || [];
  }
}, Whitespace_default = Whitespace, Metaspace = class extends PreTokenizer_default {
  /**
   * @param config The configuration object for the MetaspacePreTokenizer.
   */
  constructor(config) {
    super(), this.replacement = config.replacement ?? "▁", this.str_rep = config.str_rep || this.replacement, this.prepend_scheme = config.prepend_scheme ?? "always";
  }
  /**
   * This method takes a string, replaces spaces with the replacement character,
   * adds a prefix space if requested, and returns a new list of tokens.
   * @param text The text to pre-tokenize.
   * @param options The options for the pre-tokenization.
   * @returns A new list of pre-tokenized tokens.
   */
  pre_tokenize_text(text, options) {
    let { section_index = void 0 } = options ?? {}, normalized = text.replaceAll(" ", this.str_rep);
    return (
      // We add a prefix space if:
      //  (1) The normalized token does not already start with the replacement character.
      !normalized.startsWith(this.replacement) && // and (2) either:
      //  (a) prepend_scheme is 'always'
      //  (b) prepend_scheme is 'first' and this is the first section
      (this.prepend_scheme === "always" || this.prepend_scheme === "first" && section_index === 0) && (normalized = this.str_rep + normalized), [normalized]
    );
  }
}, Metaspace_default = Metaspace, Split = class extends PreTokenizer_default {
  /**
   * @param config The configuration options for the pre-tokenizer.
   */
  constructor(config) {
    super(), this.config = config, this.pattern = create_pattern(
      this.config.pattern ?? {},
      this.config.invert ?? !0
    );
  }
  /**
   * Tokenizes text by splitting it using the given pattern.
   * @param text The text to tokenize.
   * @returns An array of tokens.
   */
  pre_tokenize_text(text) {
    return this.pattern === null ? [] : this.config.invert ? (text.match(this.pattern) || []).filter((x) => x) : this.config.behavior?.toLowerCase() === "removed" ? text.split(this.pattern).filter((x) => x) : regex_split(text, this.pattern);
  }
}, Split_default = Split, Punctuation = class extends PreTokenizer_default {
  /**
   * @param config The configuration options for the pre-tokenizer.
   */
  constructor(config) {
    super(), this.config = config, this.pattern = new RegExp(
      `[^${PUNCTUATION_REGEX}]+|[${PUNCTUATION_REGEX}]+`,
      "gu"
    );
  }
  /**
   * Tokenizes text by splitting it using the given pattern.
   * @param text The text to tokenize.
   * @returns An array of tokens.
   */
  pre_tokenize_text(text) {
    return text.match(this.pattern) || [];
  }
}, Punctuation_default = Punctuation, Digits = class extends PreTokenizer_default {
  /**
   * @param config The configuration options for the pre-tokenizer.
   */
  constructor(config) {
    super(), this.config = config;
    let digit_pattern = `[^\\d]+|\\d${this.config.individual_digits ? "" : "+"}`;
    this.pattern = new RegExp(digit_pattern, "gu");
  }
  /**
   * Tokenizes text by splitting it using the given pattern.
   * @param text The text to tokenize.
   * @returns An array of tokens.
   */
  pre_tokenize_text(text) {
    return text.match(this.pattern) || [];
  }
}, Digits_default = Digits, BertPreTokenizer = class extends PreTokenizer_default {
  /**
   * A PreTokenizer that splits text into wordpieces using a basic tokenization scheme
   * similar to that used in the original implementation of BERT.
   */
  constructor() {
    super(), this.pattern = new RegExp(
      `[^\\s${PUNCTUATION_REGEX}]+|[${PUNCTUATION_REGEX}]`,
      "gu"
    );
  }
  /**
   * Tokenizes a single text using the BERT pre-tokenization scheme.
   *
   * @param text The text to tokenize.
   * @param options Additional options for the pre-tokenization logic.
   * @returns An array of tokens.
   */
  pre_tokenize_text(text, options) {
    return text.trim().match(this.pattern) || [];
  }
}, BertPreTokenizer_default = BertPreTokenizer, Replace2 = class extends PreTokenizer_default {
  /**
   * @param config The configuration options for the pre-tokenizer.
   */
  constructor(config) {
    super(), this.config = config, this.pattern = create_pattern(this.config.pattern ?? {}), this.content = this.config.content ?? "";
  }
  /**
   * Pre-tokenizes the input text by replacing certain characters.
   * @param text The text to be pre-tokenized.
   * @returns An array of tokens produced by replacing certain characters.
   */
  pre_tokenize_text(text) {
    return this.pattern === null ? [text] : [text.replaceAll(this.pattern, this.config.content ?? "")];
  }
}, Replace_default2 = Replace2, Sequence2 = class extends PreTokenizer_default {
  /**
   * Creates an instance of PreTokenizerSequence.
   * @param config The configuration object for the pre-tokenizer sequence.
   */
  constructor(config) {
    super(), this.tokenizers = (config.pretokenizers ?? []).map(
      (x) => create_pre_tokenizer_default(x)
    );
  }
  /**
   * Applies each pre-tokenizer in the sequence to the input text in turn.
   * @param text The text to pre-tokenize.
   * @param options Additional options for the pre-tokenization logic.
   * @returns The pre-tokenized text.
   */
  pre_tokenize_text(text, options) {
    return this.tokenizers.reduce(
      (pre_tokenized_text, tokenizer) => tokenizer ? tokenizer.pre_tokenize(pre_tokenized_text, options) : pre_tokenized_text,
      [text]
    );
  }
}, Sequence_default2 = Sequence2, WhitespaceSplit = class extends PreTokenizer_default {
  /**
   * Pre-tokenizes the input text by splitting it on whitespace characters.
   * @param text The text to be pre-tokenized.
   * @returns An array of tokens produced by splitting the input text on whitespace.
   */
  pre_tokenize_text(text) {
    return whitespace_split(text);
  }
}, WhitespaceSplit_default = WhitespaceSplit, FixedLength = class extends PreTokenizer_default {
  /**
   * @param config The configuration options for the pre-tokenizer.
   */
  constructor(config) {
    super(), this.config = config, this._length = config.length;
  }
  /**
   * Pre-tokenizes the input text by splitting it into fixed-length tokens.
   * @param text The text to be pre-tokenized.
   * @returns An array of tokens produced by splitting the input text into fixed-length tokens.
   */
  pre_tokenize_text(text) {
    let tokens = [];
    for (let i = 0; i < text.length; i += this._length)
      tokens.push(text.slice(i, i + this._length));
    return tokens;
  }
}, FixedLength_default = FixedLength;
function create_pre_tokenizer(config) {
  if (config === null) return null;
  switch (config.type) {
    case "BertPreTokenizer":
      return new BertPreTokenizer_default();
    case "Sequence":
      return new Sequence_default2(config);
    case "Whitespace":
      return new Whitespace_default();
    case "WhitespaceSplit":
      return new WhitespaceSplit_default();
    case "Metaspace":
      return new Metaspace_default(config);
    case "ByteLevel":
      return new ByteLevel_default(config);
    case "Split":
      return new Split_default(config);
    case "Punctuation":
      return new Punctuation_default(config);
    case "Digits":
      return new Digits_default(config);
    case "Replace":
      return new Replace_default2(config);
    case "FixedLength":
      return new FixedLength_default(config);
    default:
      throw new Error(`Unknown PreTokenizer type: ${config.type}`);
  }
}
var create_pre_tokenizer_default = create_pre_tokenizer, TokenizerModel = class extends Callable_default {
  /**
   * Creates a new instance of TokenizerModel.
   * @param config The configuration object for the TokenizerModel.
   */
  constructor(config) {
    super(), this.config = config, this.vocab = [], this.tokens_to_ids = new Map(), this.unk_token_id = void 0, this.unk_token = void 0, this.end_of_word_suffix = void 0, this.fuse_unk = this.config.fuse_unk ?? !1;
  }
  /**
   * Internal function to call the TokenizerModel instance.
   * @param tokens The tokens to encode.
   * @returns The encoded tokens.
   */
  _call(tokens) {
    let result = this.encode(tokens);
    return this.fuse_unk && (result = fuse_unk(result, this.tokens_to_ids, this.unk_token_id)), result;
  }
}, TokenizerModel_default = TokenizerModel, WordPieceTokenizer = class extends TokenizerModel_default {
  /**
   * @param config The configuration object.
   */
  constructor(config) {
    super(config), this.max_input_chars_per_word = 100, this.tokens_to_ids = object_to_map(config.vocab), this.unk_token_id = this.tokens_to_ids.get(config.unk_token), this.unk_token = config.unk_token, this.max_input_chars_per_word = config.max_input_chars_per_word ?? 100, this.vocab = new Array(this.tokens_to_ids.size);
    for (let [key, value] of this.tokens_to_ids)
      this.vocab[value] = key;
  }
  /**
   * Encodes an array of tokens using WordPiece encoding.
   * @param tokens The tokens to encode.
   * @returns An array of encoded tokens.
   */
  encode(tokens) {
    let output_tokens = [];
    for (let token of tokens) {
      let chars = [...token];
      if (chars.length > this.max_input_chars_per_word) {
        output_tokens.push(this.unk_token);
        continue;
      }
      let is_unknown = !1, start = 0, sub_tokens = [];
      for (; start < chars.length; ) {
        let end = chars.length, current_substring = null;
        for (; start < end; ) {
          let substr = chars.slice(start, end).join("");
          if (start > 0 && (substr = this.config.continuing_subword_prefix + substr), this.tokens_to_ids.has(substr)) {
            current_substring = substr;
            break;
          }
          --end;
        }
        if (current_substring === null) {
          is_unknown = !0;
          break;
        }
        sub_tokens.push(current_substring), start = end;
      }
      is_unknown ? output_tokens.push(this.unk_token) : output_tokens.push(...sub_tokens);
    }
    return output_tokens;
  }
}, WordPiece_default = WordPieceTokenizer, CharTrieNode = class _CharTrieNode {
  /**
   * Create a new CharTrieNode.
   * @param is_leaf Whether the node is a leaf node or not.
   * @param children A map containing the node's children, where the key is a character and the value is a `CharTrieNode`.
   */
  constructor(is_leaf, children) {
    this.is_leaf = is_leaf, this.children = children;
  }
  /**
   * Returns a new `CharTrieNode` instance with default values.
   * @returns A new `CharTrieNode` instance with `is_leaf` set to `false` and an empty `children` map.
   */
  static default() {
    return new _CharTrieNode(!1, new Map());
  }
}, CharTrie = class {
  constructor() {
    this.root = CharTrieNode.default();
  }
  /**
   * Adds one or more `texts` to the trie.
   * @param texts The strings to add to the trie.
   */
  extend(texts) {
    for (let text of texts)
      this.push(text);
  }
  /**
   * Adds text to the trie.
   * @param text The string to add to the trie.
   */
  push(text) {
    let node = this.root;
    for (let ch of text) {
      let child = node.children.get(ch);
      child === void 0 && (child = CharTrieNode.default(), node.children.set(ch, child)), node = child;
    }
    node.is_leaf = !0;
  }
  /**
   * Searches the trie for stored strings that match `chars` starting at `start`.
   * @param chars The input characters to search.
   * @param start The index to start searching from.
   * @yields Each stored string that is a prefix of `chars` starting at `start`.
   */
  *common_prefix_search(chars, start = 0) {
    let node = this.root;
    if (node === void 0) return;
    let prefix = "";
    for (let i = start; i < chars.length; ++i) {
      let ch = chars[i];
      if (prefix += ch, node = node.children.get(ch), node === void 0) return;
      node.is_leaf && (yield prefix);
    }
  }
}, CharTrie_default = CharTrie, TokenLatticeNode = class _TokenLatticeNode {
  /**
   * Represents a node in a token lattice for a given sentence.
   * @param token_id The ID of the token associated with this node.
   * @param node_id The ID of this node.
   * @param pos The starting position of the token in the sentence.
   * @param length The length of the token.
   * @param score The score associated with the token.
   */
  constructor(token_id, node_id, pos, length, score) {
    this.token_id = token_id, this.node_id = node_id, this.pos = pos, this.length = length, this.score = score, this.prev = null, this.backtrace_score = 0;
  }
  /**
   * Returns a clone of this node.
   * @returns A clone of this node.
   */
  clone() {
    let n = new _TokenLatticeNode(
      this.token_id,
      this.node_id,
      this.pos,
      this.length,
      this.score
    );
    return n.prev = this.prev, n.backtrace_score = this.backtrace_score, n;
  }
}, TokenLattice = class {
  /**
   * Creates a new TokenLattice instance.
   *
   * @param sentence The input sentence to be tokenized.
   * @param bos_token_id The beginning-of-sequence token ID.
   * @param eos_token_id The end-of-sequence token ID.
   */
  constructor(sentence, bos_token_id, eos_token_id) {
    this.chars = Array.from(sentence), this.len = this.chars.length, this.bos_token_id = bos_token_id, this.eos_token_id = eos_token_id, this.nodes = [], this.begin_nodes = Array.from(
      { length: this.len + 1 },
      () => []
    ), this.end_nodes = Array.from({ length: this.len + 1 }, () => []);
    let bos = new TokenLatticeNode(this.bos_token_id ?? 0, 0, 0, 0, 0), eos = new TokenLatticeNode(
      this.eos_token_id ?? 0,
      1,
      this.len,
      0,
      0
    );
    this.nodes.push(bos.clone()), this.nodes.push(eos.clone()), this.begin_nodes[this.len].push(eos), this.end_nodes[0].push(bos);
  }
  /**
   * Inserts a new token node into the token lattice.
   *
   * @param pos The starting position of the token.
   * @param length The length of the token.
   * @param score The score of the token.
   * @param token_id The token ID of the token.
   */
  insert(pos, length, score, token_id) {
    let node_id = this.nodes.length, node = new TokenLatticeNode(token_id, node_id, pos, length, score);
    this.begin_nodes[pos].push(node), this.end_nodes[pos + length].push(node), this.nodes.push(node);
  }
  /**
   * Implements the Viterbi algorithm to compute the most likely sequence of tokens.
   *
   * @returns The most likely sequence of tokens.
   */
  viterbi() {
    let len2 = this.len, pos = 0;
    for (; pos <= len2; ) {
      if (this.begin_nodes[pos].length == 0)
        return [];
      for (let rnode of this.begin_nodes[pos]) {
        rnode.prev = null;
        let best_score = 0, best_node = null;
        for (let lnode of this.end_nodes[pos]) {
          let score = lnode.backtrace_score + rnode.score;
          (best_node === null || score > best_score) && (best_node = lnode.clone(), best_score = score);
        }
        if (best_node !== null)
          rnode.prev = best_node, rnode.backtrace_score = best_score;
        else
          return [];
      }
      ++pos;
    }
    let results = [], prev = this.begin_nodes[len2][0].prev;
    if (prev === null)
      return [];
    let node = prev.clone();
    for (; node.prev !== null; )
      results.push(node.clone()), node = node.clone().prev.clone();
    return results.reverse(), results;
  }
  /**
   * Get the text piece for a given node.
   * @param node The node to get the piece for.
   * @returns The array of nodes representing the most likely sequence of tokens.
   */
  piece(node) {
    return this.chars.slice(node.pos, node.pos + node.length).join("");
  }
  /**
   * @returns The most likely sequence of tokens.
   */
  tokens() {
    return this.viterbi().map((x) => this.piece(x));
  }
  /**
   * @returns The most likely sequence of token ids.
   */
  token_ids() {
    return this.viterbi().map((x) => x.token_id);
  }
}, TokenLattice_default = TokenLattice;
function min(arr) {
  if (arr.length === 0) throw new Error("Array must not be empty");
  let min_value = arr[0], index_of_min = 0;
  for (let i = 1; i < arr.length; ++i)
    arr[i] < min_value && (min_value = arr[i], index_of_min = i);
  return [min_value, index_of_min];
}
var Unigram = class extends TokenizerModel_default {
  /**
   * Create a new Unigram tokenizer model.
   * @param config The configuration object for the Unigram model.
   * @param eos_token
   */
  constructor(config, eos_token) {
    super(config);
    let vocab_size = config.vocab.length;
    this.vocab = new Array(vocab_size), this.scores = new Array(vocab_size);
    for (let i = 0; i < vocab_size; ++i)
      [this.vocab[i], this.scores[i]] = config.vocab[i];
    this.unk_token_id = config.unk_id, this.unk_token = this.vocab[config.unk_id], this.tokens_to_ids = new Map(this.vocab.map((x, i) => [x, i])), this.bos_token = " ", this.bos_token_id = this.tokens_to_ids.get(this.bos_token), this.eos_token = eos_token, this.eos_token_id = this.tokens_to_ids.get(this.eos_token), this.unk_token = this.vocab[this.unk_token_id], this.min_score = min(this.scores)[0], this.unk_score = this.min_score - 10, this.scores[this.unk_token_id] = this.unk_score, this.trie = new CharTrie_default(), this.trie.extend(this.vocab), this.fuse_unk = !0;
  }
  /**
   * Populates lattice nodes.
   * @param lattice The token lattice to populate with nodes.
   */
  populate_nodes(lattice) {
    let chars = lattice.chars, mblen = 1, begin_pos = 0;
    for (; begin_pos < chars.length; ) {
      let has_single_node = !1, prefixed_tokens = this.trie.common_prefix_search(chars, begin_pos);
      for (let token of prefixed_tokens) {
        let token_id = this.tokens_to_ids.get(token), token_score = this.scores[token_id], n = len(token);
        lattice.insert(begin_pos, n, token_score, token_id), !has_single_node && n === mblen && (has_single_node = !0);
      }
      has_single_node || lattice.insert(begin_pos, mblen, this.unk_score, this.unk_token_id), begin_pos += mblen;
    }
  }
  /**
   * Encodes an array of tokens into an array of subtokens using the unigram model.
   *
   * @param normalized The normalized string.
   * @returns An array of subtokens obtained by encoding the input tokens using the unigram model.
   */
  tokenize(normalized) {
    let lattice = new TokenLattice_default(
      normalized,
      this.bos_token_id,
      this.eos_token_id
    );
    return this.populate_nodes(lattice), lattice.tokens();
  }
  /**
   * Encodes an array of tokens using Unigram encoding.
   * @param tokens The tokens to encode.
   * @returns An array of encoded tokens.
   */
  encode(tokens) {
    let to_return = [];
    for (let token of tokens) {
      let tokenized = this.tokenize(token);
      to_return.push(...tokenized);
    }
    return to_return;
  }
}, Unigram_default = Unigram, PriorityQueue = class {
  /**
   * Create a new PriorityQueue.
   * @param comparator Comparator function to determine priority. Defaults to a MaxHeap.
   * @param max_size Maximum size of the queue. Defaults to Infinity.
   */
  constructor(comparator = (a, b) => a > b, max_size = 1 / 0) {
    this._heap = [], this._comparator = comparator, this._max_size = max_size;
  }
  /**
   * The size of the queue
   */
  get size() {
    return this._heap.length;
  }
  /**
   * Check if the queue is empty.
   * @returns `true` if the queue is empty, `false` otherwise.
   */
  is_empty() {
    return this.size === 0;
  }
  /**
   * Return the element with the highest priority in the queue.
   * @returns The highest priority element in the queue.
   */
  peek() {
    return this._heap[0];
  }
  /**
   * Add one or more elements to the queue.
   * @param values The values to push into the queue.
   * @returns The new size of the queue.
   */
  push(...values) {
    return this.extend(values);
  }
  /**
   * Add multiple elements to the queue.
   * @param values The values to push into the queue.
   * @returns The new size of the queue.
   */
  extend(values) {
    for (let value of values)
      if (this.size < this._max_size)
        this._heap.push(value), this._sift_up();
      else {
        let smallest = this._smallest();
        this._comparator(value, this._heap[smallest]) && (this._heap[smallest] = value, this._sift_up_from(smallest));
      }
    return this.size;
  }
  /**
   * Remove and return the element with the highest priority in the queue.
   * @returns The element with the highest priority in the queue.
   */
  pop() {
    let popped_value = this.peek(), bottom = this.size - 1;
    return bottom > 0 && this._swap(0, bottom), this._heap.pop(), this._sift_down(), popped_value;
  }
  /**
   * Replace the element with the highest priority in the queue with a new value.
   * @param value The new value.
   * @returns The replaced value.
   */
  replace(value) {
    let replaced_value = this.peek();
    return this._heap[0] = value, this._sift_down(), replaced_value;
  }
  /**
   * Compute the index for the parent of the node at index `i`.
   * @param i The index of the node to get the parent of.
   * @returns The index of the parent node.
   * @private
   */
  _parent(i) {
    return (i + 1 >>> 1) - 1;
  }
  /**
   * Compute the index for the left child of the node at index `i`.
   * @param i The index of the node to get the left child of.
   * @returns The index of the left child.
   * @private
   */
  _left(i) {
    return (i << 1) + 1;
  }
  /**
   * Compute the index for the right child of the node at index `i`.
   * @param i The index of the node to get the right child of.
   * @returns The index of the right child.
   * @private
   */
  _right(i) {
    return i + 1 << 1;
  }
  /**
   * Check if the element at index `i` is greater than the element at index `j`.
   * @param i The index of the first element to compare.
   * @param j The index of the second element to compare.
   * @returns `true` if the element at index `i` is greater than the element at index `j`, `false` otherwise.
   * @private
   */
  _greater(i, j) {
    return this._comparator(this._heap[i], this._heap[j]);
  }
  /**
   * Swap the elements at indices `i` and `j`.
   * @param i The index of the first element to swap.
   * @param j The index of the second element to swap.
   * @private
   */
  _swap(i, j) {
    let temp = this._heap[i];
    this._heap[i] = this._heap[j], this._heap[j] = temp;
  }
  /**
   * Maintain the heap property by updating positions in the heap,
   * starting at the last element and moving up the heap.
   * @private
   */
  _sift_up() {
    this._sift_up_from(this.size - 1);
  }
  /**
   * Helper function to sift up from a given node.
   * @param node The index of the node to start sifting up from.
   */
  _sift_up_from(node) {
    for (; node > 0 && this._greater(node, this._parent(node)); )
      this._swap(node, this._parent(node)), node = this._parent(node);
  }
  /**
   * Maintain the heap property by updating positions in the heap,
   * starting at the first element and moving down the heap.
   * @private
   */
  _sift_down() {
    let node = 0;
    for (; this._left(node) < this.size && this._greater(this._left(node), node) || this._right(node) < this.size && this._greater(this._right(node), node); ) {
      let max_child = this._right(node) < this.size && this._greater(this._right(node), this._left(node)) ? this._right(node) : this._left(node);
      this._swap(node, max_child), node = max_child;
    }
  }
  /**
   * Get the index of the smallest element in the heap. Since we use an array-based heap,
   * the index can be computed without needing to traverse the heap.
   * @private
   */
  _smallest() {
    return 2 ** Math.floor(Math.log2(this.size)) - 1;
  }
}, PriorityQueue_default = PriorityQueue, LRUCache = class {
  /**
   * Creates an LRUCache instance.
   * @param capacity The maximum number of items the cache can hold.
   */
  constructor(capacity) {
    this.capacity = capacity, this.cache = new Map();
  }
  /**
   * Retrieves the value associated with the given key and marks the key as recently used.
   * @param key The key to retrieve.
   * @returns The value associated with the key, or undefined if the key does not exist.
   */
  get(key) {
    if (!this.cache.has(key)) return;
    let value = this.cache.get(key);
    return this.cache.delete(key), this.cache.set(key, value), value;
  }
  /**
   * Inserts or updates the key-value pair in the cache.
   * If the key already exists, it is updated and marked as recently used.
   * If the cache exceeds its capacity, the least recently used item is evicted.
   * @param key The key to add or update.
   * @param value The value to associate with the key.
   */
  put(key, value) {
    this.cache.has(key) && this.cache.delete(key), this.cache.set(key, value), this.cache.size > this.capacity && this.cache.delete(this.cache.keys().next().value);
  }
  /**
   * Clears the cache.
   */
  clear() {
    this.cache.clear();
  }
}, LRUCache_default = LRUCache, BPE = class extends TokenizerModel_default {
  /**
   * Create a BPE instance.
   * @param config The configuration object for BPE.
   */
  constructor(config) {
    super(config), this.tokens_to_ids = object_to_map(config.vocab), this.unk_token_id = this.tokens_to_ids.get(config.unk_token), this.unk_token = config.unk_token, this.vocab = new Array(this.tokens_to_ids.size);
    for (let [key, value] of this.tokens_to_ids)
      this.vocab[value] = key;
    let use_new_merge_format = Array.isArray(config.merges[0]);
    this.merges = use_new_merge_format ? config.merges : config.merges.map(
      (x) => x.split(" ", 2)
    ), this.bpe_ranks = new Map(this.merges.map((x, i) => [JSON.stringify(x), i])), this.end_of_word_suffix = config.end_of_word_suffix, this.continuing_subword_suffix = config.continuing_subword_suffix ?? null, this.byte_fallback = this.config.byte_fallback ?? !1, this.byte_fallback && (this.text_encoder = new TextEncoder()), this.ignore_merges = this.config.ignore_merges ?? !1, this.max_length_to_cache = 256, this.cache_capacity = 1e4, this.cache = new LRUCache_default(this.cache_capacity);
  }
  /**
   * Clears the cache.
   */
  clear_cache() {
    this.cache.clear();
  }
  /**
   * Apply Byte-Pair-Encoding (BPE) to a given token. Efficient heap-based priority
   * queue implementation adapted from https://github.com/belladoreai/llama-tokenizer-js.
   * @param token The token to encode.
   * @returns The BPE encoded tokens.
   */
  bpe(token) {
    if (token.length === 0)
      return [];
    let cached = this.cache.get(token);
    if (cached !== void 0)
      return cached;
    let word = Array.from(token);
    this.end_of_word_suffix && (word[word.length - 1] += this.end_of_word_suffix);
    let result = [];
    if (word.length > 1) {
      let queue = new PriorityQueue_default((a, b) => a.score < b.score), starting_node = {
        token: word[0],
        bias: 0,
        prev: null,
        next: null
      }, previous_node = starting_node;
      for (let i = 1; i < word.length; ++i) {
        let current_node = {
          bias: i / word.length,
          // Add fractional component to break ties
          token: word[i],
          prev: previous_node,
          next: null
        };
        previous_node.next = current_node, this.add_node(queue, previous_node), previous_node = current_node;
      }
      for (; !queue.is_empty(); ) {
        let node = queue.pop();
        if (node.deleted || !node.next || node.next.deleted) continue;
        if (node.deleted = !0, node.next.deleted = !0, node.prev) {
          let new_previous_node = { ...node.prev };
          node.prev.deleted = !0, node.prev = new_previous_node, new_previous_node.prev ? new_previous_node.prev.next = new_previous_node : starting_node = new_previous_node;
        }
        let merged = {
          token: node.token + node.next.token,
          bias: node.bias,
          prev: node.prev,
          next: node.next.next
        };
        merged.prev ? (merged.prev.next = merged, this.add_node(queue, merged.prev)) : starting_node = merged, merged.next && (merged.next.prev = merged, this.add_node(queue, merged));
      }
      for (let current_node = starting_node; current_node !== null; current_node = current_node.next)
        result.push(current_node.token);
    } else
      result = word;
    if (this.continuing_subword_suffix)
      for (let i = 0; i < result.length - 1; ++i)
        result[i] += this.continuing_subword_suffix;
    return token.length < this.max_length_to_cache && this.cache.put(token, result), result;
  }
  /**
   * Helper function to add a node to the priority queue.
   * @param queue
   * @param node
   */
  add_node(queue, node) {
    let rank = this.bpe_ranks.get(
      JSON.stringify([node.token, node.next.token])
    );
    rank !== void 0 && (node.score = rank + node.bias, queue.push(node));
  }
  /**
   * Encodes the input sequence of tokens using the BPE algorithm and returns the resulting subword tokens.
   * @param tokens The input sequence of tokens to encode.
   * @returns The resulting subword tokens after applying the BPE algorithm to the input sequence of tokens.
   */
  encode(tokens) {
    let output_tokens = [];
    for (let token of tokens) {
      if (this.ignore_merges && this.tokens_to_ids.has(token)) {
        output_tokens.push(token);
        continue;
      }
      let bpe_token_list = this.bpe(token);
      for (let t of bpe_token_list)
        if (this.tokens_to_ids.has(t))
          output_tokens.push(t);
        else if (this.byte_fallback) {
          let byte_tokens = Array.from(this.text_encoder.encode(t)).map(
            (x) => `<0x${x.toString(16).toUpperCase().padStart(2, "0")}>`
          );
          byte_tokens.every((x) => this.tokens_to_ids.has(x)) ? output_tokens.push(...byte_tokens) : this.unk_token != null && output_tokens.push(this.unk_token);
        } else this.unk_token != null && output_tokens.push(this.unk_token);
    }
    return output_tokens;
  }
}, BPE_default = BPE, Legacy = class extends TokenizerModel_default {
  /**
   * Create a Legacy tokenizer model instance.
   * @param config The configuration object for Legacy tokenizer model.
   * @param more_config Additional configuration object for the Legacy tokenizer model.
   */
  constructor(config, more_config) {
    super(config);
    let vocab = config.vocab;
    this.tokens_to_ids = object_to_map(
      more_config.target_lang ? vocab[more_config.target_lang] : vocab
    ), this.bos_token = more_config.bos_token, this.bos_token_id = this.tokens_to_ids.get(this.bos_token), this.eos_token = more_config.eos_token, this.eos_token_id = this.tokens_to_ids.get(this.eos_token), this.pad_token = more_config.pad_token, this.pad_token_id = this.tokens_to_ids.get(this.pad_token), this.unk_token = more_config.unk_token, this.unk_token_id = this.tokens_to_ids.get(this.unk_token), this.vocab = new Array(this.tokens_to_ids.size);
    for (let [key, value] of this.tokens_to_ids)
      this.vocab[value] = key;
  }
  encode(tokens) {
    return tokens;
  }
}, Legacy_default = Legacy;
function create_tokenizer_model(model_config, config) {
  switch (model_config.type) {
    case "WordPiece":
      return new WordPiece_default(model_config);
    case "Unigram":
      return new Unigram_default(model_config, config.eos_token);
    case "BPE":
      return new BPE_default(model_config);
    default:
      if (model_config.vocab)
        return Array.isArray(model_config.vocab) ? new Unigram_default(model_config, config.eos_token) : Object.hasOwn(model_config, "continuing_subword_prefix") && Object.hasOwn(model_config, "unk_token") ? Object.hasOwn(model_config, "merges") ? new BPE_default(model_config) : new WordPiece_default(model_config) : new Legacy_default(model_config, {
          target_lang: config.target_lang,
          bos_token: config.bos_token,
          eos_token: config.eos_token,
          pad_token: config.pad_token,
          unk_token: config.unk_token
        });
      throw new Error(
        `Unknown TokenizerModel type: ${model_config?.type}`
      );
  }
}
var create_tokenizer_model_default = create_tokenizer_model, PostProcessor = class extends Callable_default {
  /**
   * @param config The configuration for the post-processor.
   */
  constructor(config) {
    super(), this.config = config;
  }
  /**
   * Alias for {@link PostProcessor#post_process}.
   * @param tokens The text or array of texts to post-process.
   * @param args Additional arguments required by the post-processing logic.
   * @returns The post-processed tokens.
   */
  _call(tokens, ...args) {
    return this.post_process(tokens, ...args);
  }
}, PostProcessor_default = PostProcessor, TemplateProcessing = class extends PostProcessor_default {
  /**
   * Replaces special tokens in the template with actual tokens.
   * @param tokens The list of tokens for the first sequence.
   * @param tokens_pair The list of tokens for the second sequence (optional).
   * @param add_special_tokens Whether to add the special tokens to the beginning and end of the input.
   * @returns An object containing the list of tokens with the special tokens replaced with actual tokens.
   */
  post_process(tokens, tokens_pair = null, add_special_tokens = !0) {
    let type = tokens_pair === null ? this.config.single : this.config.pair, processed_tokens = [], types = [];
    for (let item of type)
      "SpecialToken" in item ? add_special_tokens && (processed_tokens.push(item.SpecialToken.id), types.push(item.SpecialToken.type_id)) : "Sequence" in item && (item.Sequence.id === "A" ? (processed_tokens = merge_arrays(processed_tokens, tokens), types = merge_arrays(
        types,
        new Array(tokens.length).fill(item.Sequence.type_id)
      )) : item.Sequence.id === "B" && (processed_tokens = merge_arrays(processed_tokens, tokens_pair), types = merge_arrays(
        types,
        new Array(tokens_pair.length).fill(item.Sequence.type_id)
      )));
    return { tokens: processed_tokens, token_type_ids: types };
  }
}, TemplateProcessing_default = TemplateProcessing, ByteLevel2 = class extends PostProcessor_default {
  /**
   * Post process the given tokens.
   * @param tokens The list of tokens for the first sequence.
   * @param tokens_pair The list of tokens for the second sequence (optional).
   * @returns An object containing the post-processed tokens.
   */
  post_process(tokens, tokens_pair = null) {
    return { tokens, tokens_pair };
  }
}, ByteLevel_default2 = ByteLevel2, BertProcessing = class extends PostProcessor_default {
  /**
   * @param config The configuration for the post-processor.
   * @param config.cls The special tokens to add to the beginning of the input.
   * @param config.sep The special tokens to add to the end of the input.
   */
  constructor(config) {
    super(config), this.sep = config.sep, this.cls = config.cls;
  }
  /**
   * Adds the special tokens to the beginning and end of the input.
   * @param tokens The input tokens.
   * @param tokens_pair An optional second set of input tokens.
   * @param add_special_tokens Whether to add the special tokens to the beginning and end of the input.
   * @returns The post-processed tokens with the special tokens added to the beginning and end.
   */
  post_process(tokens, tokens_pair = null, add_special_tokens = !0) {
    add_special_tokens && (tokens = merge_arrays([this.cls[0]], tokens, [this.sep[0]]));
    let token_type_ids = new Array(tokens.length).fill(0);
    if (tokens_pair) {
      let middle = [], after = add_special_tokens ? [this.sep[0]] : [];
      tokens = merge_arrays(tokens, middle, tokens_pair, after), token_type_ids = merge_arrays(
        token_type_ids,
        new Array(tokens_pair.length + middle.length + after.length).fill(1)
      );
    }
    return { tokens, token_type_ids };
  }
}, BertProcessing_default = BertProcessing, RobertaProcessing = class extends PostProcessor_default {
  /**
   * @param config The configuration for the post-processor.
   * @param config.cls The special tokens to add to the beginning of the input.
   * @param config.sep The special tokens to add to the end of the input.
   */
  constructor(config) {
    super(config), this.sep = config.sep, this.cls = config.cls;
  }
  /**
   * Adds the special tokens to the beginning and end of the input.
   * @param tokens The input tokens.
   * @param tokens_pair An optional second set of input tokens.
   * @param add_special_tokens Whether to add the special tokens to the beginning and end of the input.
   * @returns The post-processed tokens with the special tokens added to the beginning and end.
   */
  post_process(tokens, tokens_pair, add_special_tokens = !0) {
    add_special_tokens && (tokens = merge_arrays([this.cls[0]], tokens, [this.sep[0]]));
    let token_type_ids = new Array(tokens.length).fill(0);
    if (tokens_pair) {
      let middle = add_special_tokens ? [this.sep[0]] : [], after = add_special_tokens ? [this.sep[0]] : [];
      tokens = merge_arrays(tokens, middle, tokens_pair, after), token_type_ids = merge_arrays(
        token_type_ids,
        new Array(tokens_pair.length + middle.length + after.length).fill(1)
      );
    }
    return { tokens, token_type_ids };
  }
}, RobertaProcessing_default = RobertaProcessing, Sequence3 = class extends PostProcessor_default {
  /**
   * Creates a new instance of Sequence post-processor.
   * @param config The configuration object.
   */
  constructor(config) {
    super(config), this.processors = (config.processors ?? []).map((x) => create_post_processor_default(x));
  }
  /**
   * Post process the given tokens.
   * @param tokens The list of tokens for the first sequence.
   * @param tokens_pair The list of tokens for the second sequence (optional).
   * @param add_special_tokens Whether to add the special tokens to the beginning and end of the input.
   * @returns An object containing the post-processed tokens.
   */
  post_process(tokens, tokens_pair = null, add_special_tokens = !0) {
    let processed_tokens = { tokens, tokens_pair };
    for (let processor of this.processors)
      processed_tokens = processor.post_process(
        processed_tokens.tokens,
        processed_tokens.tokens_pair,
        add_special_tokens
      );
    return processed_tokens;
  }
}, Sequence_default3 = Sequence3;
function create_post_processor(config) {
  if (config === null) return null;
  switch (config.type) {
    case "TemplateProcessing":
      return new TemplateProcessing_default(config);
    case "ByteLevel":
      return new ByteLevel_default2(config);
    case "BertProcessing":
      return new BertProcessing_default(config);
    case "RobertaProcessing":
      return new RobertaProcessing_default(config);
    case "Sequence":
      return new Sequence_default3(config);
    default:
      throw new Error(`Unknown PostProcessor type: ${config.type}`);
  }
}
var create_post_processor_default = create_post_processor, Decoder = class extends Callable_default {
  /**
   * Creates an instance of `Decoder`.
   * @param config The configuration object.
   **/
  constructor(config) {
    super(), this.config = config, this.added_tokens = [], this.end_of_word_suffix = null, this.trim_offsets = "trim_offsets" in config ? config.trim_offsets : !1;
  }
  /**
   * Calls the `decode` method.
   *
   * @param tokens The list of tokens.
   * @returns The decoded string.
   */
  _call(tokens) {
    return this.decode(tokens);
  }
  /**
   * Decodes a list of tokens.
   * @param tokens The list of tokens.
   * @returns The decoded string.
   */
  decode(tokens) {
    return this.decode_chain(tokens).join("");
  }
}, Decoder_default = Decoder, ByteLevel3 = class extends Decoder_default {
  /**
   * Create a `ByteLevelDecoder` object.
   */
  constructor(config) {
    super(config), this.byte_decoder = UNICODE_TO_BYTES, this.text_decoder = new TextDecoder("utf-8", {
      fatal: !1,
      // eslint-disable-next-line @typescript-eslint/naming-convention
      ignoreBOM: !0
    }), this.end_of_word_suffix = null;
  }
  /**
   * Convert an array of tokens to string by decoding each byte.
   * @param tokens Array of tokens to be decoded.
   * @returns The decoded string.
   */
  convert_tokens_to_string(tokens) {
    let text = tokens.join(""), byte_array = new Uint8Array(
      [...text].map((c) => this.byte_decoder[c])
    );
    return this.text_decoder.decode(byte_array);
  }
  decode_chain(tokens) {
    let sub_texts = [], current_sub_text = [];
    for (let token of tokens)
      this.added_tokens.find((x) => x.content === token) !== void 0 ? (current_sub_text.length > 0 && (sub_texts.push(this.convert_tokens_to_string(current_sub_text)), current_sub_text = []), sub_texts.push(token)) : current_sub_text.push(token);
    return current_sub_text.length > 0 && sub_texts.push(this.convert_tokens_to_string(current_sub_text)), sub_texts;
  }
}, ByteLevel_default3 = ByteLevel3, WordPiece = class extends Decoder_default {
  /**
   * Creates a new instance of WordPieceDecoder.
   * @param config The configuration object.
   */
  constructor(config) {
    super(config), this.cleanup = config.cleanup;
  }
  decode_chain(tokens) {
    return tokens.map((token, i) => {
      if (i !== 0) {
        let prefix = this.config.prefix;
        prefix && token.startsWith(prefix) ? token = token.replace(prefix, "") : token = " " + token;
      }
      return this.cleanup && (token = clean_up_tokenization(token)), token;
    });
  }
}, WordPiece_default2 = WordPiece, Metaspace2 = class extends Decoder_default {
  /**
   * Constructs a new MetaspaceDecoder object.
   * @param config The configuration object for the MetaspaceDecoder.
   */
  constructor(config) {
    super(config), this.replacement = config.replacement ?? "▁";
  }
  decode_chain(tokens) {
    let result = [];
    for (let i = 0; i < tokens.length; ++i) {
      let normalized = tokens[i].replaceAll(this.replacement, " ");
      i == 0 && normalized.startsWith(" ") && (normalized = normalized.substring(1)), result.push(normalized);
    }
    return result;
  }
}, Metaspace_default2 = Metaspace2, BPE2 = class extends Decoder_default {
  constructor(config) {
    super(config), this.suffix = config.suffix ?? "";
  }
  decode_chain(tokens) {
    return tokens.map((token, i) => token.replaceAll(this.suffix, i === tokens.length - 1 ? "" : " "));
  }
}, BPE_default2 = BPE2, CTC = class extends Decoder_default {
  constructor(config) {
    super(config), this.pad_token = config.pad_token ?? "", this.word_delimiter_token = config.word_delimiter_token ?? "", this.cleanup = config.cleanup;
  }
  /**
   * Converts a connectionist-temporal-classification (CTC) output tokens into a single string.
   * @param tokens Array of tokens to be decoded.
   * @returns The decoded string.
   */
  convert_tokens_to_string(tokens) {
    if (tokens.length === 0) return "";
    let grouped_tokens = [tokens[0]];
    for (let i = 1; i < tokens.length; ++i)
      tokens[i] !== grouped_tokens.at(-1) && grouped_tokens.push(tokens[i]);
    let text = grouped_tokens.filter(
      (token) => token !== this.pad_token
    ).join("");
    return this.cleanup && (text = clean_up_tokenization(text).replaceAll(this.word_delimiter_token, " ").trim()), text;
  }
  decode_chain(tokens) {
    return [this.convert_tokens_to_string(tokens)];
  }
}, CTC_default = CTC, Sequence4 = class extends Decoder_default {
  /**
   * Creates a new instance of DecoderSequence.
   * @param config The configuration object.
   */
  constructor(config) {
    super(config), this.decoders = (config.decoders ?? []).map((x) => create_decoder_default(x));
  }
  decode_chain(tokens) {
    return this.decoders.reduce((toks, decoder) => decoder.decode_chain(toks), tokens);
  }
}, Sequence_default4 = Sequence4, Replace3 = class extends Decoder_default {
  /**
   * @param config The configuration object for the decoder.
   */
  constructor(config) {
    super(config), this.pattern = create_pattern(this.config.pattern);
  }
  decode_chain(tokens) {
    let content = this.config.content ?? "", pattern = this.pattern;
    return pattern === null ? tokens : tokens.map((token) => token.replaceAll(pattern, content));
  }
}, Replace_default3 = Replace3, Fuse = class extends Decoder_default {
  decode_chain(tokens) {
    return [tokens.join("")];
  }
}, Fuse_default = Fuse, Strip2 = class extends Decoder_default {
  constructor(config) {
    super(config), this.content = config.content ?? "", this.start = config.start ?? 0, this.stop = config.stop ?? 0;
  }
  decode_chain(tokens) {
    return tokens.map((token) => {
      let start_cut = 0;
      for (let i = 0; i < this.start && token[i] === this.content; ++i) {
        start_cut = i + 1;
        continue;
      }
      let stop_cut = token.length;
      for (let i = 0; i < this.stop; ++i) {
        let index = token.length - i - 1;
        if (token[index] === this.content) {
          stop_cut = index;
          continue;
        } else
          break;
      }
      return token.slice(start_cut, stop_cut);
    });
  }
}, Strip_default2 = Strip2, ByteFallback = class extends Decoder_default {
  constructor(config) {
    super(config), this.text_decoder = new TextDecoder();
  }
  decode_chain(tokens) {
    let new_tokens = [], previous_byte_tokens = [];
    for (let token of tokens) {
      let bytes = null;
      if (token.length === 6 && token.startsWith("<0x") && token.endsWith(">")) {
        let byte = parseInt(token.slice(3, 5), 16);
        isNaN(byte) || (bytes = byte);
      }
      if (bytes !== null)
        previous_byte_tokens.push(bytes);
      else {
        if (previous_byte_tokens.length > 0) {
          let string = this.text_decoder.decode(
            Uint8Array.from(previous_byte_tokens)
          );
          new_tokens.push(string), previous_byte_tokens = [];
        }
        new_tokens.push(token);
      }
    }
    if (previous_byte_tokens.length > 0) {
      let string = this.text_decoder.decode(
        Uint8Array.from(previous_byte_tokens)
      );
      new_tokens.push(string), previous_byte_tokens = [];
    }
    return new_tokens;
  }
}, ByteFallback_default = ByteFallback;
function create_decoder(config) {
  if (config === null) return null;
  switch (config.type) {
    case "ByteLevel":
      return new ByteLevel_default3(config);
    case "WordPiece":
      return new WordPiece_default2(config);
    case "Metaspace":
      return new Metaspace_default2(config);
    case "BPEDecoder":
      return new BPE_default2(config);
    case "CTC":
      return new CTC_default(config);
    case "Sequence":
      return new Sequence_default4(config);
    case "Replace":
      return new Replace_default3(config);
    case "Fuse":
      return new Fuse_default(config);
    case "Strip":
      return new Strip_default2(config);
    case "ByteFallback":
      return new ByteFallback_default(config);
    default:
      throw new Error(`Unknown Decoder type: ${config.type}`);
  }
}
var create_decoder_default = create_decoder, Tokenizer = class {
  constructor(tokenizer, config) {
    let tokenizer_error = validate_object(tokenizer, "Tokenizer", [
      "model",
      "decoder",
      "post_processor",
      "pre_tokenizer",
      "normalizer"
    ]);
    if (tokenizer_error)
      throw new Error(tokenizer_error);
    let config_error = validate_object(config, "Config");
    if (config_error)
      throw new Error(config_error);
    this.tokenizer = tokenizer, this.config = config, this.normalizer = create_normalizer_default(this.tokenizer.normalizer), this.pre_tokenizer = create_pre_tokenizer_default(this.tokenizer.pre_tokenizer), this.model = create_tokenizer_model_default(this.tokenizer.model, this.config), this.post_processor = create_post_processor_default(this.tokenizer.post_processor), this.decoder = create_decoder_default(this.tokenizer.decoder), this.special_tokens = [], this.all_special_ids = [], this.added_tokens = [];
    let unnormalized_contents = [], normalized_contents = [];
    this.added_tokens_map = new Map();
    for (let added_token of this.tokenizer.added_tokens) {
      let token = new AddedToken_default(added_token);
      if (this.added_tokens.push(token), this.model.tokens_to_ids.set(token.content, token.id), this.model.vocab[token.id] = token.content, token.special && (this.special_tokens.push(token.content), this.all_special_ids.push(token.id)), this.added_tokens_map.set(token.content, token), token.normalized && this.normalizer !== null) {
        let normalized_content = this.normalizer(token.content);
        normalized_contents.push(normalized_content), this.added_tokens_map.set(normalized_content, token);
      } else
        unnormalized_contents.push(token.content);
    }
    (this.config.additional_special_tokens ?? []).forEach((token) => {
      this.special_tokens.includes(token) || this.special_tokens.push(token);
    }), this.decoder && (this.decoder.added_tokens = this.added_tokens, this.decoder.end_of_word_suffix = this.model.end_of_word_suffix), this.splitter_unnormalized = new DictionarySplitter_default(unnormalized_contents), this.splitter_normalized = new DictionarySplitter_default(normalized_contents), this.remove_space = this.config.remove_space, this.clean_up_tokenization_spaces = this.config.clean_up_tokenization_spaces ?? !0, this.do_lowercase_and_remove_accent = this.config.do_lowercase_and_remove_accent ?? !1;
  }
  // Implementation
  encode(text, {
    text_pair = null,
    add_special_tokens = !0,
    return_token_type_ids = null
  } = {}) {
    let { tokens, token_type_ids } = this.tokenize_helper(text, {
      text_pair,
      add_special_tokens
    }), input_ids = tokens.map(
      (t) => this.added_tokens_map.get(t)?.id ?? this.model.tokens_to_ids.get(t) ?? this.model.unk_token_id
    ), result = {
      ids: input_ids,
      tokens,
      attention_mask: new Array(input_ids.length).fill(1)
    };
    return return_token_type_ids && token_type_ids && (result.token_type_ids = token_type_ids), result;
  }
  decode(token_ids, options = {}) {
    if (!Array.isArray(token_ids) || token_ids.length === 0 || !is_integral_number(token_ids[0]))
      throw Error("token_ids must be a non-empty array of integers.");
    let tokens = token_ids.map(
      (i) => this.model.vocab[Number(i)] ?? this.model.unk_token
    );
    options.skip_special_tokens && (tokens = tokens.filter((x) => !this.special_tokens.includes(x)));
    let decoded = this.decoder ? this.decoder(tokens) : tokens.join(" ");
    return this.decoder && this.decoder.end_of_word_suffix && (decoded = decoded.replaceAll(this.decoder.end_of_word_suffix, " "), options.skip_special_tokens && (decoded = decoded.trim())), (options.clean_up_tokenization_spaces ?? this.clean_up_tokenization_spaces) && (decoded = clean_up_tokenization(decoded)), decoded;
  }
  /**
   * Converts a string into a sequence of tokens.
   * @param text The sequence to be encoded.
   * @param options An optional object containing the following properties:
   * @returns The list of tokens.
   */
  tokenize(text, { text_pair = null, add_special_tokens = !1 } = {}) {
    return this.tokenize_helper(text, { text_pair, add_special_tokens }).tokens;
  }
  encode_text(text) {
    if (text === null)
      return null;
    let sections = this.splitter_unnormalized.split(text);
    return sections.forEach((section, i) => {
      let added_token = this.added_tokens_map.get(section);
      added_token && (added_token.lstrip && i > 0 && (sections[i - 1] = sections[i - 1].trimEnd()), added_token.rstrip && i < sections.length - 1 && (sections[i + 1] = sections[i + 1].trimStart()));
    }), sections.flatMap((processed_text, section_index) => {
      if (processed_text.length === 0)
        return [];
      if (this.added_tokens_map.has(processed_text))
        return [processed_text];
      if (this.remove_space === !0 && (processed_text = processed_text.trim().split(/\s+/).join(" ")), this.do_lowercase_and_remove_accent && (processed_text = lowercase_and_remove_accents(processed_text)), this.normalizer !== null && (processed_text = this.normalizer(processed_text)), processed_text.length === 0)
        return [];
      let subsections = this.splitter_normalized.split(processed_text);
      return subsections.forEach((subsection, j) => {
        let added_token = this.added_tokens_map.get(subsection);
        added_token && (added_token.lstrip && j > 0 && (subsections[j - 1] = subsections[j - 1].trimEnd()), added_token.rstrip && j < subsections.length - 1 && (subsections[j + 1] = subsections[j + 1].trimStart()));
      }), subsections.flatMap((subsection) => {
        if (subsection.length === 0)
          return [];
        if (this.added_tokens_map.has(subsection))
          return [subsection];
        let section_tokens = this.pre_tokenizer !== null ? this.pre_tokenizer(subsection, {
          section_index
        }) : [subsection];
        return this.model(section_tokens);
      });
    });
  }
  tokenize_helper(text, { text_pair = null, add_special_tokens = !0 }) {
    let tokens1 = this.encode_text(text), tokens2 = this.encode_text(text_pair || null);
    return this.post_processor ? this.post_processor(tokens1, tokens2, add_special_tokens) : { tokens: merge_arrays(tokens1 ?? [], tokens2 ?? []) };
  }
  /**
   * Converts a token string to its corresponding token ID.
   * @param token The token string to convert.
   * @returns The token ID, or undefined if the token is not in the vocabulary.
   */
  token_to_id(token) {
    return this.model.tokens_to_ids.get(token);
  }
  /**
   * Converts a token ID to its corresponding token string.
   * @param id The token ID to convert.
   * @returns The token string, or undefined if the ID is not in the vocabulary.
   */
  id_to_token(id) {
    return this.model.vocab[id];
  }
  /**
   * Returns a mapping of token IDs to AddedToken objects for all added tokens.
   * @returns A Map where keys are token IDs and values are AddedToken objects.
   */
  get_added_tokens_decoder() {
    let decoder = new Map();
    for (let token of this.added_tokens)
      decoder.set(token.id, token);
    return decoder;
  }
  /**
   * Get the underlying vocabulary
   * @param with_added_tokens Whether to include the added tokens
   * @returns The vocabulary
   */
  get_vocab(with_added_tokens = !0) {
    let vocab = new Map();
    for (let i = 0; i < this.model.vocab.length; ++i) {
      let token = this.model.vocab[i];
      (with_added_tokens || !this.added_tokens_map.has(token)) && vocab.set(token, i);
    }
    return vocab;
  }
}, Tokenizer_default = Tokenizer;

// src/core/errors.ts
var PumiceError = class extends Error {
  constructor(message, hint = "", fields = {}) {
    super(message), this.hint = hint, this.fields = fields, this.name = new.target.name;
  }
  hint;
  fields;
  code = "error";
}, InputError = class extends PumiceError {
  code = "input";
}, UnknownName = class extends InputError {
  code = "unknown-name";
}, MissingName = class extends InputError {
  code = "missing-name";
}, ShapeError = class extends InputError {
  code = "shape";
}, DTypeError = class extends InputError {
  code = "dtype";
}, SymbolError = class extends InputError {
  code = "symbol";
}, IndexRangeError = class extends InputError {
  code = "index-range";
}, DataError = class extends InputError {
  code = "data";
}, FormatError = class extends InputError {
  code = "format";
}, DamagedFile = class extends FormatError {
  code = "damaged-file";
}, DiskFull = class extends PumiceError {
  code = "disk-full";
}, Diverged = class extends PumiceError {
  code = "diverged";
}, NotFinite = class extends PumiceError {
  code = "not-finite";
}, PlanError = class extends PumiceError {
  code = "plan";
}, LimitError = class extends PlanError {
  code = "limit";
}, ShaderError = class extends PlanError {
  code = "shader";
}, DeviceError = class extends PumiceError {
  code = "device";
}, NoDevice = class extends DeviceError {
  code = "no-device";
}, DeviceLost = class extends DeviceError {
  code = "device-lost";
}, OutOfMemory = class extends DeviceError {
  code = "out-of-memory";
}, RunCancelled = class extends PumiceError {
  code = "run-cancelled";
}, ClosedError = class extends PumiceError {
  code = "closed";
}, SourceError = class extends PumiceError {
  code = "source";
}, NotFound = class extends SourceError {
  code = "not-found";
}, NoNetwork = class extends SourceError {
  code = "no-network";
}, WrongHash = class extends SourceError {
  code = "wrong-hash";
}, CLASSES = [PumiceError, InputError, UnknownName, MissingName, ShapeError, DTypeError, SymbolError, IndexRangeError, DataError, FormatError, DamagedFile, DiskFull, Diverged, NotFinite, PlanError, LimitError, ShaderError, DeviceError, NoDevice, DeviceLost, OutOfMemory, RunCancelled, ClosedError, SourceError, NotFound, NoNetwork, WrongHash], BY_CODE = new Map(CLASSES.map((kind) => [new kind("").code, kind]));

// src/model/vocabulary.ts
var ENCODER = new TextEncoder(), byteOf = null;
function byteAlphabet() {
  let found = new Map(), other = 256;
  for (let byte = 0; byte < 256; byte++) {
    let printable = byte >= 33 && byte < 127 || byte >= 161 && byte < 173 || byte >= 174;
    found.set(String.fromCharCode(printable ? byte : other++), byte);
  }
  return found;
}
function pieceBytes(piece, decoding) {
  switch (decoding) {
    case "byte-level": {
      byteOf ??= byteAlphabet();
      let bytes = [...piece].map((character) => byteOf.get(character));
      return bytes.includes(void 0) ? ENCODER.encode(piece) : Uint8Array.from(bytes);
    }
    case "metaspace": {
      let byte = /^<0x([0-9a-fA-F]{2})>$/.exec(piece);
      return byte ? Uint8Array.of(parseInt(byte[1], 16)) : ENCODER.encode(piece.replaceAll("▁", " "));
    }
    case "wordpiece":
      return ENCODER.encode(piece.startsWith("##") ? piece.slice(2) : ` ${piece}`);
    case "words":
      return ENCODER.encode(` ${piece}`);
    case "plain":
      return ENCODER.encode(piece);
  }
}

// src/model/text.ts
var Text = class {
  constructor(tokenizerJson, settings, template, { lowerCase = !1 } = {}) {
    this.settings = settings, this.template = template;
    let json = parsed(tokenizerJson, settings.file);
    lowerCase && putLowercaseFirst(json), writeWordLevelAsWordPiece(json), this.prepare = preparation(json), this.tokenizer = guarded(`cannot read ${settings.file}`, () => new Tokenizer_default(json, {})), this.special = new Set(settings.special), this.added = new Set(settings.added);
  }
  settings;
  template;
  tokenizer;
  special;
  added;
  bytes = new Map();
  prepare;
  compiled = null;
  encode(text, addSpecial = !0) {
    checkText(text, "the text");
    let around = this.settings.surrounding, native = addSpecial && around === null, { ids } = guarded("the model's tokeniser fails on this text", () => this.tokenizer.encode(this.prepare(text), { add_special_tokens: native })), known = ids.filter((id) => id !== void 0);
    return addSpecial && around ? [...around.before, ...known, ...around.after] : known;
  }
  encodePrompt(prompt, system, raw) {
    if (typeof prompt == "string") {
      if (raw || !this.template) {
        if (system !== null && !raw)
          throw new InputError("this model has no chat template, so there is no place for a system text");
        return this.encode(prompt);
      }
      return checkText(prompt, "the prompt"), this.encodePrompt([{ role: "user", content: prompt }], system, raw);
    }
    if (!Array.isArray(prompt)) throw new InputError(`the prompt is ${typeof prompt}`, `give ${KINDS}`);
    if (!prompt.length) throw new InputError("the prompt is an empty list", `give ${KINDS}`);
    if (typeof prompt[0] == "number") return [...prompt];
    if (!this.template) throw new InputError("this model has no chat template", "pass a plain text with raw: true");
    checkMessages(prompt, system);
    let messages = system === null ? prompt : [{ role: "system", content: system }, ...prompt];
    return this.encode(this.render(messages), !1);
  }
  tokenBytes = (token) => {
    let found = this.bytes.get(token);
    return found || (found = this.findBytes(token), this.bytes.set(token, found)), found;
  };
  render(messages) {
    let { variables } = this.template, given = { ...variables, messages, tools: null, documents: null, add_generation_prompt: !0 };
    try {
      return this.compiled ??= new Template(this.source()), this.compiled.render(given);
    } catch (error) {
      if (error instanceof PumiceError) throw error;
      let why = String(error instanceof Error ? error.message : error).slice(0, 500);
      throw new InputError(`the chat template does not take this conversation: ${why}`, "change the roles or the order of the messages to what the model was trained on");
    }
  }
  source() {
    let { sources } = this.template, names = Object.keys(sources), found = sources.default ?? (names.length === 1 ? sources[names[0]] : void 0);
    if (found === void 0) throw new FormatError('the bundle has no chat template "default"', `it has ${names.sort().join(", ")}`);
    return found;
  }
  findBytes(token) {
    if (this.special.has(token)) return new Uint8Array();
    let piece = this.settings.pieces[token] ?? this.tokenizer.id_to_token(token);
    return piece === void 0 ? new Uint8Array() : this.added.has(token) ? new TextEncoder().encode(piece) : pieceBytes(piece, this.settings.decoding);
  }
}, KINDS = 'a text, messages as [{"role": "user", "content": "…"}], or token ids';
function checkMessages(messages, system) {
  system !== null && checkText(system, "the system text");
  for (let [k, given] of messages.entries()) {
    let { role, content } = given ?? {};
    if (typeof role != "string" || content === void 0)
      throw new InputError(`message ${k} is no {"role": …, "content": …}`, "roles are system, user, assistant");
    typeof content == "string" && checkText(content, messages.length === 1 ? "the prompt" : `message ${k}`);
  }
}
function checkText(text, what) {
  if (typeof text != "string") throw new InputError(`${what} is ${typeof text}`, "pass text as a string");
  let at = text.search(/\p{Surrogate}/u);
  if (at < 0) return;
  let character = [...text.slice(0, at)].length;
  throw new InputError(`${what} holds half of a surrogate pair at character ${character}`, "cut texts between characters", { at: character });
}
function parsed(text, file) {
  return guarded(`cannot read ${file}`, () => JSON.parse(text));
}
function putLowercaseFirst(json) {
  let steps = normalizers(json);
  steps.some((step) => step.type === "Lowercase") || (json.normalizer = { type: "Sequence", normalizers: [{ type: "Lowercase" }, ...steps] });
}
function writeWordLevelAsWordPiece(json) {
  let model = json.model;
  model?.type === "WordLevel" && (json.model = { ...model, type: "WordPiece", continuing_subword_prefix: "\0", max_input_chars_per_word: Number.MAX_SAFE_INTEGER });
}
function preparation(json) {
  let steps = normalizers(json), bert = steps.find((step) => step.type === "BertNormalizer"), lowers = bert?.lowercase === !0 || steps.some((step) => step.type === "Lowercase"), spaces = bert?.handle_chinese_chars === !0;
  return (text) => (spaces && (text = text.replace(/[\u{20000}-\u{2a6df}\u{2a700}-\u{2b81f}\u{2b920}-\u{2ceaf}\u{2f800}-\u{2fa1f}]/gu, " $& ")), lowers ? text.replaceAll("Σ", "σ") : text);
}
function normalizers(json) {
  let own = json.normalizer;
  return own ? own.type === "Sequence" ? own.normalizers ?? [] : [own] : [];
}
function guarded(what, work) {
  try {
    return work();
  } catch (error) {
    let why = String(error instanceof Error ? error.message : error).slice(0, 500);
    throw new FormatError(`${what}: ${why}`, "the file is damaged or its converter was wrong; export the model again");
  }
}
export {
  Text,
  checkText
};
