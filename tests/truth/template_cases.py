"""What the interpreter of chat templates and jinja2 must agree on: snippets over VARS, and
conversations through whole templates. A snippet that jinja2 refuses must be refused too."""

VARS = {
    "s": "Hello, World", "empty": "", "uni": "naïve café – 漢字 🎉", "ws": "\u00a0 \t pad \n\u3000",
    "lines": "one\ntwo\r\n\nthree", "quote": "it's \"so\" \\ <b>&</b>", "n": 7, "neg": -3, "f": 2.5,
    "big": 9007199254740993, "whole": 3.0, "tiny": 1e-07, "huge": 1e+16, "t": True, "no": False,
    "nil": None, "l": [3, 1, 2], "words": ["pear", "Apple", "fig", "apple"], "e": [],
    "d": {"b": 1, "a": [1, 2.0, None], "items": "key named items", "nested": {"k": {"z": "deep"}}},
    "people": [{"name": "Bo", "age": 30, "tags": ["x"]}, {"name": "al", "age": 25},
               {"name": "Cy", "age": 30, "tags": []}],
}

EXPRESSIONS = r"""
1 + 2 * 3
(1 + 2) * 3
7 // 2 ~ ',' ~ -7 // 2 ~ ',' ~ 7 % 3 ~ ',' ~ -7 % 3 ~ ',' ~ 7 % -3
7 / 2
6 / 3
2 ** 10
2 ** -1
2 ** 3 ** 2
-2 ** 2
1.5 + 1
0.1 + 0.2
1e3
1e16 ~ ' ' ~ 1.5e300 ~ ' ' ~ 1e-5 ~ ' ' ~ 123456789.125
1_000_000
tiny ~ ' ' ~ huge ~ ' ' ~ whole ~ ' ' ~ f
big + 1
7.5 // 2
-7.5 % 2
1 / 0
1 % 0
9223372036854775807 * 1
t + t
not t
not nil and not empty
1 < 2 < 3
1 < 3 < 2
1 == 1.0
1 == true
'1' == 1
'a' < 'b'
'a' < 1
[1, 2] < [1, 3]
[1, 2] == [1, 2]
(1, 2) == [1, 2]
{'a': 1, 'b': 2} == {'b': 2, 'a': 1}
nil == false
nil is none
1 in l
5 not in l
'Hello' in s
'' in s
'a' in d
'z' in d.nested
1 in s
1 in nil
missing in l
'x' in missing
s and n
empty or 'fallback'
nil or empty or 0
missing or 'default'
t if n > 5 else 'small'
'small' if n < 5
('a' if no) is undefined
'x' if no else 'y' if no else 'z'
1 if t else 2 if t else 3
s[0]
s[-1]
s[100]
s[1:4]
s[-5:]
s[:-7]
s[::-1]
s[::2]
s[10:2:-3]
uni[2]
uni[-1]
uni[11:]
uni[::-1]
uni | length
l[0] ~ l[-1]
l[1:]
l[::-1]
l[5:]
l[-2:]
l[0:10:2]
messages[0].content
l[true]
l['x'] is defined
d.b
d['b']
d.a[1]
d.nested.k.z
d['nested']['k']['z']
d.zzz
d.zzz.y
d['items']
d.items() | length
d.keys() | list
d.values() | list
d.get('b')
d.get('q')
d.get('q', 'dflt')
missing
missing.x
missing['x']
missing()
missing + 1
'a' + missing
nil.x
nil.x.y
n.x
s.x
people[0].name
people.0.name
people[1].tags is defined
people[2]['tags'] is defined
s.upper()
s.lower()
s.title()
'hELLO wORLD'.capitalize()
"they're bill's".title()
s.replace('l', 'L')
s.replace('l', 'L', 1)
'abc'.replace('', '-')
s.split(', ')
s.split(',')[-1].strip()
'a b  c '.split()
'a b  c '.split(' ')
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
'  x y z '.split(none, 1)
''.split()
''.split(',')
lines.splitlines()
lines.splitlines(true)
s.split('')
ws.strip() ~ '|'
'|' ~ ws.lstrip()
ws.rstrip() ~ '|'
'xxhixx'.strip('x')
'abcba'.strip('ab')
'xxhixx'.lstrip('x')
'xxhixx'.rstrip('x')
'é–x–é'.strip('–é')
s.startswith('Hell')
s.endswith('xyz')
s.startswith(('x', 'H'))
s.find('o')
s.find('zz')
s.rfind('o')
uni.find('漢')
s.index('W')
s.index('zz')
s.count('l')
'aaa'.count('aa')
', '.join(['a', 'b'])
', '.join([1])
'12'.isdigit()
''.isdigit()
'ab1'.isalnum() ~ 'ab'.isalpha() ~ ' '.isspace() ~ 'AB'.isupper() ~ 'aB'.islower()
'k=v=w'.partition('=')
'k=v=w'.rpartition('=')
'kv'.partition('=')
'prefix-x'.removeprefix('prefix-')
'x.txt'.removesuffix('.txt')
l.index(2)
l.count(3)
l.index(9)
l.append(4)
d.update({'x': 1})
'{} and {}'.format(1, 'two')
'{0}{1}{0} {name} {{}}'.format('a', 'b', name='n')
'%s is %d or %5.2f|%-5s|%05d|%r' % ('x', 3, 2.5, 'ab', 42, 'q')
'%d%%' % 50
'%s' % nil
'%(a)s' % {'a': 1}
'a' 'b' "c"
'ab' * 3
[1, 2] * 2
3 * 'xy'
'a' * -1
[1] + [2]
(1,) + (2, 3)
[1] + (2,)
'a' + 1
'a' ~ 1 ~ nil ~ t ~ 2.0 ~ [1, 'x']
1 ~ 2 + 3
(1, 2)
(1,)
()
[1, 'two', 3.0, none, true, [4], {'k': 'v'}]
{'a': 1, 'b': {'c': [1, 2]}}
{1: 'int', 'x': 2, none: 3, true: 4}
{1: 'a', 1.0: 'b'}
{[1]: 2}
{'a': 1}[('x', 1)] is defined
"tab\tnl\nquote\"back\\slash" ~ '\x41\u00e9\101' ~ '\d'
['it\'s', "say \"hi\"", 'both \' and "', 'tab\t nl\n é 漢 \x01 \u200b']
quote
[quote]
l | length
s | length
d | length
nil | length
n | length
missing | length
l | first
l | last
s | first
e | first
d | first
l | join
l | join(', ')
words | join('|')
people | join(', ', attribute='name')
people | map(attribute='name') | join(',')
people | map(attribute='tags') | list
people | map(attribute='tags', default='none') | list
people | map(attribute='tags.0') | list
words | map('upper') | list
words | map('replace', 'p', 'P') | list
words | map('nosuch') | list
l | sort
words | sort
words | sort(case_sensitive=true)
words | sort(reverse=true)
people | sort(attribute='age') | map(attribute='name') | list
people | sort(attribute='age', reverse=true) | map(attribute='name') | list
[1, 'a'] | sort
words | unique | list
words | unique(case_sensitive=true) | list
l | min ~ l | max
words | min ~ words | max
people | max(attribute='age')
e | min
l | sum
people | sum(attribute='age')
l | sum(start=10)
l | reverse | list
s | reverse
[1, 2, 3, 4, 5] | batch(2) | list
[1, 2, 3, 4, 5] | batch(2, 'x') | list
[0, 1, '', 'a'] | select | list
[0, 1, '', 'a'] | reject | list
[1, 2, 3, 4] | select('odd') | list
[1, 2, 3, 4] | reject('divisibleby', 2) | list
[1, 2, 3, 4] | select('gt', 2) | list
[1, 2, 3, 4] | select('>=', 3) | list
people | selectattr('tags') | map(attribute='name') | list
people | selectattr('age', 'equalto', 30) | map(attribute='name') | list
people | rejectattr('age', '==', 30) | map(attribute='name') | list
people | selectattr('tags', 'defined') | list | length
people | selectattr('age', 'in', [25]) | list | length
people | selectattr('age', 'nosuch') | list
d | dictsort | map(attribute=0) | list
{'b': 2, 'A': 3, 'c': 1} | dictsort
{'b': 2, 'A': 3, 'c': 1} | dictsort(by='value')
{'b': 2, 'A': 3, 'c': 1} | dictsort(case_sensitive=true, reverse=true)
d | items | list
missing | items | list
l | items | list
'  x ' | trim ~ '|'
'xxhixx' | trim('x')
s | upper ~ s | lower ~ s | capitalize
'hello big-world (foo) it\'s' | title
n | upper
s | replace('o', '0')
s | replace('o', '0', 1)
123 | replace(2, 'x')
missing | default('dd')
missing | d
nil | default('dd')
nil | default('dd', true)
empty | default('dd', boolean=true)
missing | default
n | string + 'x'
l | string
'42' | int + 1
'4.9' | int
'x' | int
'x' | int(-1)
'ff' | int(0, 16)
2.9 | int
nil | int
' 12 ' | int
'2.5' | float
'x' | float
n | float
-3 | abs
neg | abs
2.567 | round(2)
2.5 | round
3.5 | round
2.4 | round(method='ceil')
2.6 | round(0, 'floor')
7 | round
1234.5 | round(-2)
quote | e
quote | escape
('<' | safe) + '<'
'<' + ('>' | safe)
('<' | safe) ~ '<'
('<b>' | e) ~ '<'
'a\nb\n\nc' | indent
'a\nb\n\nc' | indent(2, true)
'a\nb\n\nc' | indent(2, blank=true)
'a\nb' | indent('> ')
'a b c' | wordcount
'%s-%s' | format(1, 'b')
'abc' | list
d | list
n | list
'abc' | nosuch
n is nosuch
d | tojson
people | tojson
people | tojson(indent=2)
[[], {}, [[]], {'a': {}}] | tojson(indent=4)
[1.0, 1e100, 0.1, tiny, huge, big, true, none, -0.5] | tojson
quote | tojson
uni | tojson
uni | tojson(ensure_ascii=true)
'\b\f\x1f\x7f/' | tojson
{'b': 1, 'a': 2, 'C': 3} | tojson(sort_keys=true)
{'b': 1, 'a': [1, 2]} | tojson(separators=(',', ':'))
{1: 2, none: 3, true: 4, 2.5: 5} | tojson
(1, 2) | tojson
missing | tojson
range | tojson
n is odd ~ n is even ~ (n is divisibleby 7) ~ n is divisibleby(2)
n is number ~ f is number ~ t is number ~ s is number
n is integer ~ f is integer ~ t is integer
f is float ~ n is float
s is string ~ n is string ~ missing is string
d is mapping ~ l is mapping
l is sequence ~ s is sequence ~ d is sequence ~ n is sequence ~ nil is sequence
l is iterable ~ s is iterable ~ d is iterable ~ n is iterable ~ missing is iterable
t is boolean ~ n is boolean
t is true ~ no is false ~ n is true ~ 1 is true
nil is none ~ missing is none ~ n is not none
missing is defined ~ missing is undefined ~ nil is defined
d.b is defined and d.q is not defined
n is equalto 7 ~ n is eq(7) ~ (n is ne 7) ~ n is gt 3 ~ n is lt(3)
1 is in [1, 2]
'a' is in 'abc'
'ABC' is upper ~ 'abc' is lower
range is callable ~ s is callable
n is sameas 7
not n is odd
n is not odd
s is string and n is number
range(3) | list
range(1, 4) | list
range(5, 0, -2) | list
range(0) | list
range(3)[1]
range(10) | length
range(1, 2, 0)
range(100001)
range('a')
dict(a=1, b=2)
dict({'x': 1}, y=2)
dict([('k', 'v')])
dict(d.nested, **{'x': 1})
dict(**d.nested.k)
range(*[1, 4]) | list
'%s-%s' | format(*['a', 'b'])
dict(**l)
namespace(a=1).a
namespace().zz is defined
raise_exception('boom')
strftime_now('%Y-%m-%d %H:%M')
strftime_now('%d %b %Y')
bos_token ~ eos_token
tools is none
tools is defined
add_generation_prompt
- 1 | abs
-1 | abs
+n
-s
s.__class__ is defined
d.__class__
1 +
(1
[1, 2
{'a' 1}
'unterminated
1 2
a..b
{{ 1 }}
@
""".strip("\n").split("\n")

STATEMENTS = [
    # As templates of Gemma 2 and Phi-4-mini have it: turns that must alternate, tools of a message.
    "{% for m in messages[1:] %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('turns must alternate') }}{% endif %}{% if (m['role'] == 'assistant') %}"
    "{% set role = 'model' %}{% else %}{% set role = m['role'] %}{% endif %}"
    "{{ '<' + role + '>' + m['content'] | trim + '|' }}{% endfor %}",
    "{% if (messages[0]['role'] == 'user') != (0 % 2 == 0) %}{{ raise_exception('no') }}{% endif %}",
    "{% for m in messages %}{% if m['role'] == 'system' and 'tools' in m and m['tools'] is not none %}"
    "{{ m['tools'] }}{% else %}{{ '<|' + m['role'] + '|>' + m['content'] + '<|end|>' }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|assistant|>' }}{% else %}{{ eos_token }}{% endif %}",
    "plain text", "", "{{ s }}\n", "{{ s }}\n\n", "a\r\nb\rc",
    "{# comment #}x", "a {#- c -#} b", "{# c #}\nx", "  {# c #}\n  x", "{#+ c +#}\nx", "{# open",
    "{% if t %}yes{% endif %}", "{% if no %}a{% elif n == 7 %}b{% else %}c{% endif %}",
    "{% if no %}a{% elif no %}b{% else %}c{% endif %}", "{% if missing %}a{% else %}b{% endif %}",
    "{% if missing.x %}a{% endif %}",
    "  {% if t %}\n  x\n  {% endif %}\ny", "  {%- if t -%}\n  x\n  {%- endif -%}\ny",
    "  {%+ if t %}\n  x\n  {%+ endif +%}\ny", "a\n  {% if t %}b{% endif %}  \nc",
    "a {% if t %} b {% endif %} c", "a\n\n{% if t %}\n\nb\n{% endif %}\n\nc",
    "\t{% set x = 1 %}\n\t{{ x }}\n", "{{ s -}}  \n x", "x \n {{- s }}", "{{- -1 -}}",
    "{% raw %}{{ x }} {% if %}{% endraw %}!", "  {% raw %}\n  {{ x }}\n  {% endraw %}\nz",
    "{%- raw -%}  {{ x }}  {%- endraw -%}  z", "{% raw %}open",
    "{% for x in l %}{{ x }},{% endfor %}", "{% for x in e %}{{ x }}{% else %}none{% endfor %}",
    "{% for c in 'añb' %}[{{ c }}]{% endfor %}", "{% for k in d %}{{ k }};{% endfor %}",
    "{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
    "{% for k, v in d | dictsort %}{{ k }}={{ v }};{% endfor %}",
    "{% for a, b in [(1, 2), [3, 4]] %}{{ a }}{{ b }} {% endfor %}",
    "{% for a, (b, c) in [(1, (2, 3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
    "{% for a, b in [(1, 2, 3)] %}{{ a }}{% endfor %}", "{% for a, b in [1] %}{{ a }}{% endfor %}",
    "{% for x in missing %}{{ x }}{% else %}nothing{% endfor %}", "{% for x in n %}{% endfor %}",
    "{% for x in nil %}{% endfor %}",
    "{% for x in l %}{{ loop.index }}/{{ loop.length }}:{{ loop.index0 }},{{ loop.revindex }},"
    "{{ loop.revindex0 }},{{ loop.first }},{{ loop.last }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }} {% endfor %}",
    "{% for x in l %}{{ loop.previtem is defined }}{{ loop.nextitem is defined }}{% endfor %}",
    "{% for x in l %}{{ loop.cycle('a', 'b') }}{% endfor %}",
    "{% for x in range(10) if x is even %}{{ loop.index }}:{{ x }}{{ ',' if not loop.last }}{% endfor %}",
    "{% for x in l if x > 5 %}{{ x }}{% else %}empty{% endfor %}",
    "{% for x in l %}{% for y in words %}{{ loop.index }}{% endfor %}{{ loop.index }};{% endfor %}",
    "{% for x in range(10) %}{% if x == 2 %}{% continue %}{% endif %}{% if x == 5 %}{% break %}"
    "{% endif %}{{ x }}{% endfor %}",
    "{% for x in l %}{% for y in l %}{% if y == 1 %}{% break %}{% endif %}{{ x }}{{ y }} {% endfor %}"
    "{% endfor %}", "{% break %}",
    "{% for x in l[::-1] %}{{ x }}{% endfor %}", "{% for x in (1, 2) + (3,) %}{{ x }}{% endfor %}",
    "{% for x in l | sort %}{{ x }}{% endfor %}", "{% for x in l if t else e %}{{ x }}{% endfor %}",
    "{% for x in 1, 2 %}{{ x }}{% endfor %}",
    "{% set x = 5 %}{{ x }}", "{% set x, y = 1, 2 %}{{ x }}{{ y }}", "{% set x = 1, 2 %}{{ x }}",
    "{% set x = 1 %}{% for i in l %}{% set x = i %}{{ x }}{% endfor %}{{ x }}",
    "{% for i in l %}{{ z is defined }}{% set z = i %}{{ z }} {% endfor %}{{ z is defined }}",
    "{% if t %}{% set x = 1 %}{% endif %}{{ x }}", "{% set x %}a {{ n }} b{% endset %}[{{ x }}]",
    "{% set x | upper | trim %} abc {% endset %}[{{ x }}]", "{% set n = n + 1 %}{{ n }}",
    "{% set x %}{% set y = 1 %}{% endset %}{{ y is defined }}",
    "{% set ns = namespace(c=0, found=false) %}{% for i in l %}{% set ns.c = ns.c + i %}{% endfor %}"
    "{{ ns.c }}{{ ns.found }}{{ ns.zz is defined }}", "{% set d.x = 1 %}", "{% set missing.x = 1 %}",
    "{% set ns = namespace(l=[]) %}{% for i in l %}{% set ns.l = ns.l + [i * 2] %}{% endfor %}{{ ns.l }}",
    "{% macro m(a, b=2) %}{{ a }}-{{ b }};{% endmacro %}{{ m(1) }}{{ m(1, 3) }}{{ m(b=4, a=5) }}{{ m() }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, 2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(c=2) }}",
    "{% macro m(a) %}{{ a }}{% endmacro %}{{ m(1, a=2) }}",
    "{% macro m(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ m(1) }}",
    "{% macro fact(k) %}{{ 1 if k < 2 else k * (fact(k - 1) | int) }}{% endmacro %}{{ fact(10) }}",
    "{% macro m() %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{% set x = 2 %}{{ m() }}",
    "{% macro m() %}{% set x = 9 %}{{ x }}{% endmacro %}{% set x = 1 %}{{ m() }}{{ x }}",
    "{% macro m(x) %}<{{ x }}>{% endmacro %}{% for i in l %}{{ m(i) }}{% endfor %}{{ m('a') | upper }}",
    "{% macro a() %}a{% endmacro %}{% macro b() %}{{ a() }}b{% endmacro %}{{ b() }}",
    "{% macro m() %}x{% endmacro %}{{ m is callable }}{{ m() + 'y' }}",
    "{% macro m(a) %}<{{ a }}{{ caller() }}>{% endmacro %}{% call m(1) %}in{{ n }}{% endcall %}",
    "{% macro m() %}{% for i in l %}{{ caller(i, b=2) }}{% endfor %}{% endmacro %}"
    "{% call(a, b=1) m() %}{{ a }}{{ b }} {% endcall %}",
    "{% call 1 %}{% endcall %}", "{% call s() %}{% endcall %}",
    "{% generation %}text{{ n }}{% endgeneration %}", "{% for x in l %}{% generation %}{{ x }}{% endgeneration %}{% endfor %}",
    "{% filter upper %}abc {{ s }}{% endfilter %}", "{% filter replace('a', 'b') | trim %} aaa {% endfilter %}",
    "{% with x = 1, y = 2 %}{{ x }}{{ y }}{% endwith %}{{ x is defined }}",
    "{% set x = 1 %}{% with x = 2, y = x %}{{ x }}{{ y }}{% endwith %}{{ x }}",
    "{% if t %}", "{% endif %}", "{% for x in l %}", "{% unknown %}", "{% if %}x{% endif %}", "{{ }}",
    "{% set %}", "{% for in l %}{% endfor %}", "{% else %}", "{% macro %}{% endmacro %}", "{{ s", "{% if t",
    "{{ {'a': {'b': 1}} }}", "{{ {'a': {'b': 1}}.a.b }}", "{{ '}}' }}{{ '%}' }}", "{{ ')' }}", "{{ (1] }}",
    "}} %} #}", "{ { x } }", "{{ '{{' }}", "{{ s }}{{ n }}", "{{ s }} {{ n }}", "{%if t%}x{%endif%}",
    "{%\nif t\n%}x{%\nendif\n%}", "{{\n s \n}}", "{{ raise_exception('with ' ~ n) }}",
    "{% if no %}{{ raise_exception('never') }}{% endif %}fine",
    "{{ n|string|length }}", "{{ l|map('string')|join('-') }}", "{{ 'a'.b is defined }}",
    "{% set a = [1,2,3] %}{{ a[1:]|length }}{{ a|last }}", "{{ people|map(attribute='name')|map('lower')|list }}",
    "{% for p in people|selectattr('age', 'gt', 26) %}{{ p.name }}{{ loop.last }}{% endfor %}",
    "{{ [1, 2,] }}{{ {'a': 1,} }}{{ dict(a=1,) }}", "{{ 'x' if missing is defined and missing.y else 'z' }}",
    "{{ messages|length }}{{ messages[-1]['role'] }}{{ messages[0].role == 'system' }}",
    "{% for m in messages[1:] %}{{ m.role[0] }}{% endfor %}",
    "{% for m in messages %}{{ loop.previtem.role if loop.previtem is defined else '-' }}>{% endfor %}",
    "{{ not missing }}{{ missing == missing2 }}{{ missing ~ 'x' }}", "{{ (missing, 1) }}{{ [missing] }}",
]

TOOLS = [
    {"type": "function", "function": {
        "name": "get_weather", "description": "Weather at a place: \"now\" or later, in °C",
        "parameters": {"type": "object", "properties": {
            "place": {"type": "string", "description": "City, e.g. Zürich"},
            "days": {"type": "integer", "minimum": 0, "default": 1},
            "unit": {"type": "string", "enum": ["C", "F"]}}, "required": ["place"]}}},
    {"type": "function", "function": {"name": "ping", "description": "", "parameters": {}}},
]
CALL = {"id": "call00001", "type": "function",
        "function": {"name": "get_weather", "arguments": {"place": "Zürich", "days": 2, "ratio": 1.0}}}


def user(text):
    return {"role": "user", "content": text}


def assistant(text, **extra):
    return {"role": "assistant", "content": text, **extra}


SYSTEM = {"role": "system", "content": " Be brief.\nBe kind. "}
RESULT = {"role": "tool", "content": "{\"t\": 21.5}", "name": "get_weather",
          "tool_call_id": "call00001"}
CONVERSATIONS = {
    "one question": dict(messages=[user("Hi there")], gen=True),
    "system": dict(messages=[SYSTEM, user(" Hi\n")], gen=True),
    "several turns": dict(messages=[SYSTEM, user("One?"), assistant(" Two. "), user("Three?"),
                                    assistant("<think>hm</think>Four."), user("🎉 {{ five }}")], gen=True),
    "finished": dict(messages=[user("One?"), assistant("Two.")], gen=False),
    "tools offered": dict(messages=[user("Weather?")], tools=TOOLS, gen=True),
    "tools and system": dict(messages=[SYSTEM, user("Weather?")], tools=TOOLS, gen=True),
    "tool called": dict(messages=[user("Weather?"), assistant(None, tool_calls=[CALL]), RESULT],
                        tools=TOOLS, gen=True),
    "call with text": dict(messages=[user("Weather?"), assistant("Let me see.", tool_calls=[CALL]),
                                     RESULT, assistant("21.5 °C."), user("Thanks")], tools=TOOLS, gen=True),
    "two calls": dict(messages=[SYSTEM, user("Both?"), assistant("", tool_calls=[CALL, CALL]), RESULT,
                                RESULT, assistant("Done."), user("More")], tools=TOOLS, gen=True),
    "odd roles": dict(messages=[assistant("first"), user("a"), user("b")], gen=True),
    "empty content": dict(messages=[user("")], gen=True),
}
